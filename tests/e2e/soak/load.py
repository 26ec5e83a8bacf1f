"""Pods created at a steady rate, judged while they run and after their end, and deleted."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from tests.e2e.cluster import ApiError, Json
from tests.e2e.ground import Ground, phase, wait
from tests.e2e.soak.failures import Disturbance, Failure, words_of
from tests.e2e.soak.pods import NETWORK, Drawer, Drawn
from tests.e2e.stream import Stream

MOST = 25
"""How many pods may not have ended before more come."""
_LOOKS = 6
"""A wrong container is a finding when it has been so in so many looks: its pod may be ending."""
_CLIENTS = 8
_AGREE_SECONDS = 120.0
_END_SECONDS = 300.0
_OVER: Json = {"status": {"phase": "Succeeded"}}


class Load:
    """What a soak creates on one node, and all that was wrong with it.

    Attributes:
        findings: sentences, each about something that must not be.
    """

    def __init__(
        self,
        ground: Ground,
        *,
        seed: int,
        every: float,
        disturbances: Callable[[], Sequence[Disturbance]],
    ) -> None:
        self._ground = ground
        self._every = every
        self._disturbances = disturbances
        self._drawer = Drawer(ground.make, ground.names, node=ground.node, seed=seed)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._listed: dict[str, Json] = {}
        self._over: dict[str, Json] = {}
        self._drawn: dict[str, tuple[Drawn, float]] = {}
        self._looks: Counter[str] = Counter()
        self._running_judged: set[str] = set()
        self.created: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.not_created: Counter[str] = Counter()
        self.findings: list[str] = []

    @contextmanager
    def leg(self) -> Iterator[Stream]:
        """Create pods until it is left; then all have ended. Names are those of every leg."""
        self._over.clear()
        self._drawn.clear()
        with Stream(
            self._create, self._list, most=MOST, every=self._every, within=_END_SECONDS
        ) as stream:
            yield stream

    def judge(self, *, init_recorded: bool) -> None:
        """Judge every pod that has not been judged, and delete those that have ended."""
        with suppress(ApiError):  # no response: the next call judges them
            self._judge(init_recorded=init_recorded)

    def _judge(self, *, init_recorded: bool) -> None:
        with self._lock:
            drawn = dict(self._drawn)
        pods = {name: pod for name, pod in self._ground.cluster.pods().items() if name in drawn}
        by_phase = {
            wanted: {name: pod for name, pod in pods.items() if phase(pod) == wanted}
            for wanted in ("Running", "Succeeded", "Failed")
        }
        new = {n: p for n, p in by_phase["Running"].items() if _uid(p) not in self._running_judged}
        done = [
            *self._judge_failed(by_phase["Failed"], drawn),
            *self._judge_devices(by_phase["Succeeded"], init_recorded=init_recorded),
        ]
        for name in self._judge_devices(new, init_recorded=init_recorded):
            self._running_judged.add(_uid(new[name]))
        with ThreadPoolExecutor(_CLIENTS) as pool:
            list(pool.map(self._remove, done))

    def _judge_devices(self, pods: dict[str, Json], *, init_recorded: bool) -> list[str]:
        """Return the names of those that are judged; the others are looked at once more."""
        if not pods:
            return []
        seen = self._ground.look(pods, patient=False)
        done = []
        for name, pod in pods.items():
            own = [each for each in seen if each.pod == name]
            wrong = self._ground.findings(own, init_recorded=init_recorded)
            key = f"{_uid(pod)} {phase(pod)}"
            self._looks[key] += 1
            if wrong and self._looks[key] < _LOOKS:
                continue
            done.append(name)
            self.judged[phase(pod)] += len(own)
            self.findings += [f"{self._time()} {phase(pod)}: {each}" for each in wrong]
        return done

    def _judge_failed(
        self, pods: dict[str, Json], drawn: dict[str, tuple[Drawn, float]]
    ) -> list[str]:
        for name, pod in pods.items():
            plan, created = drawn[name]
            self.note_failure(name, pod, created=created, intended=plan.refused)
        return list(pods)

    def note_failure(self, name: str, pod: Json, *, created: float, intended: str = "") -> None:
        """Count a failed pod; it is a finding if nothing explains it."""
        failure = Failure(name, words_of(pod), created, time.monotonic())
        if intended and intended in failure.words:
            self.failed["intended", intended.strip()] += 1
            return
        explanation = failure.explanation(self._disturbances())
        self.failed[explanation or "unexplained", failure.classify()[0]] += 1
        if explanation is None:
            self.findings.append(f"{self._time()} {name} failed: {failure.words}")

    # --- creating ----------------------------------------------------------------------

    def _create(self, name: str) -> None:
        drawn = self._drawer.draw(name, next(self._numbers))
        self.created[drawn.kind] += 1
        if drawn.deleted_after is None:
            self._note(name, drawn)
        refused = self._try(drawn.manifest)
        if refused is not None:
            self._remove(name)
            if not drawn.refused or drawn.refused not in refused:
                self.not_created[refused] += 1
            return
        if drawn.deleted_after is None:
            return
        time.sleep(drawn.deleted_after)
        self._remove(name)
        if drawn.again is None:
            return
        self._note(name, Drawn(drawn.kind, drawn.again))
        if (late := self._try(drawn.again)) is not None:
            self._remove(name)
            self.not_created[late] += 1

    def _try(self, pod: Json) -> str | None:
        """Create a pod, as soon as its name is free; return why not."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self._ground.cluster.create(pod)
            except ApiError as error:
                if error.code == 409 and time.monotonic() < deadline:
                    time.sleep(0.5)
                    continue
                return str(error)
            return None

    def _list(self) -> dict[str, Json]:
        with suppress(ApiError):  # no response: the pods before are as good
            self._listed = self._ground.cluster.pods()
        with self._lock:
            return {**self._listed, **self._over}

    def _note(self, name: str, drawn: Drawn) -> None:
        with self._lock:
            self._over.pop(name, None)
            self._drawn[name] = (drawn, time.monotonic())

    def _remove(self, name: str) -> None:
        """Delete a pod, also one whose creation got no response."""
        with suppress(ApiError):
            self._ground.cluster.delete(name)
        with self._lock:
            self._over[name] = _OVER
            self._drawn.pop(name, None)

    @staticmethod
    def _time() -> str:
        return time.strftime("%H:%M:%S")


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


class Staying:
    """Pods that run through a whole soak; those that a restarted kubelet rejects are replaced."""

    def __init__(self, ground: Ground, load: Load, count: int) -> None:
        self._ground = ground
        self._load = load
        self._made = ground.make.burst(count, seed=1)
        self._names = itertools.count()
        self._created: dict[str, tuple[Json, float]] = {}

    def create(self) -> None:
        self._run(self._made)

    def _run(self, pods: Sequence[Json]) -> None:
        made: list[Json] = []
        for each in pods:
            name = f"stays-{next(self._names)}"
            spec = {**each["spec"], **NETWORK}
            made.append({**each, "metadata": {**each["metadata"], "name": name}, "spec": spec})
            self._created[name] = (each, time.monotonic())
        self._ground.run(*made)

    def check(self, *, init_recorded: bool) -> dict[str, Json]:
        """Replace failed ones, judge all, and return them."""
        failed = {n: p for n, p in self._pods().items() if phase(p) == "Failed"}
        for name, pod in failed.items():
            self._load.note_failure(name, pod, created=self._created[name][1])
            self._ground.cluster.delete(name)
        self._run([self._created.pop(name)[0] for name in failed])
        wrong: list[str] = []
        pods: dict[str, Json] = {}

        def right() -> bool:
            nonlocal wrong, pods
            pods = self._pods()
            seen = self._ground.look(pods, patient=False)
            wrong = self._ground.findings(seen, init_recorded=init_recorded)
            if not wrong:
                self._load.judged["stayed"] += len(seen)
            return not wrong

        try:
            wait("staying pods", right, within=_AGREE_SECONDS, pause=2)
        except AssertionError:
            self._load.findings += [f"stayed: {each}" for each in wrong]
        return pods

    def _pods(self) -> dict[str, Any]:
        return {n: p for n, p in self._ground.cluster.pods().items() if n in self._created}
