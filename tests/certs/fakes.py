"""A cluster in memory that can be stopped at every call, and what must hold in it at any time."""

import marshal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch

from certs.errors import CertsError, Conflict
from certs.objects import Json, Kind, Purpose, parse_configuration, parse_secret
from certs.observing import Observed, Served, observe
from certs.reading import Certificate, is_issued_by
from certs.rotation import Done, Environment, Wait, rotate
from certs.settings import Settings, parse_settings

START = datetime(2030, 1, 1, tzinfo=UTC)
CA, TLS = "gpu-turnstile-webhook-ca", "gpu-turnstile-webhook-tls"
MUTATING, VALIDATING = (Kind.MUTATING, "gpu-turnstile"), (Kind.VALIDATING, "gpu-turnstile")
SETTLE, GRACE = timedelta(seconds=120), timedelta(seconds=600)


def flags(**changed: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "namespace": "gpu",
        "ca_secret": CA,
        "tls_secret": TLS,
        "service": "hook",
        "dns": (),
        "mutating": ("gpu-turnstile",),
        "validating": ("gpu-turnstile",),
        "days": 90,
        "ca_days": 365,
        "settle": 120,
        "grace": 600,
        "asks": False,
        "force": False,
    }
    return given | changed


def settings(**changed: Any) -> Settings:
    return parse_settings(**flags(**changed))


def configuration(kind: Kind = Kind.MUTATING, *, webhooks: int = 2, name: str = "") -> Json:
    capital = {Kind.MUTATING: "Mutating", Kind.VALIDATING: "Validating"}[kind]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{capital}WebhookConfiguration",
        "metadata": {"name": name or "gpu-turnstile"},
        "webhooks": [
            {
                "name": f"hook{index}.example.com",
                "clientConfig": {"service": {"name": "hook", "namespace": "gpu", "path": "/x"}},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "rules": [],
            }
            for index in range(webhooks)
        ],
    }


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, duration: timedelta) -> None:
        self.now += duration


@dataclass
class FakeCluster:
    """Keeps objects as the API server does: versions, conflicts, copies.

    Attributes:
        after: called after every write.
        secrets: by name.
        configurations: by kind and name.
        writes: the names of the writes so far.
    """

    after: Callable[[], None] = lambda: None
    secrets: dict[str, Json] = field(default_factory=dict)
    configurations: dict[tuple[Kind, str], Json] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    version: int = 0

    def stamp(self, obj: Json) -> Json:
        self.version += 1
        obj = _copy(obj)
        obj["metadata"]["resourceVersion"] = str(self.version)
        obj["metadata"].setdefault("uid", f"uid-{self.version}")
        return obj

    def install(self) -> None:
        for key in (MUTATING, VALIDATING):
            self.configurations[key] = self.stamp(configuration(key[0]))

    def get_secret(self, name: str) -> Json | None:
        found: Json | None = _copy(self.secrets.get(name))
        return found

    def create_secret(self, obj: Json) -> None:
        name = obj["metadata"]["name"]
        if name in self.secrets:
            raise Conflict(f"{name}: exists")
        assert "resourceVersion" not in obj["metadata"]
        self.secrets[name] = self.stamp(obj)
        self._written(f"create {name}")

    def replace_secret(self, name: str, obj: Json) -> None:
        self._check(self.secrets.get(name), obj["metadata"]["resourceVersion"])
        self.secrets[name] = self.stamp(obj)
        self._written(f"replace {name}")

    def get_configuration(self, kind: Kind, name: str) -> Json | None:
        found: Json | None = _copy(self.configurations.get((kind, name)))
        return found

    def patch_configuration(self, kind: Kind, name: str, patch: list[Json]) -> None:
        found = self.configurations.get((kind, name))
        patched = jsonpatch.apply_patch(found, patch)
        self._check(found, patched["metadata"]["resourceVersion"])
        self.configurations[kind, name] = self.stamp(patched)
        self._written(f"patch {kind.value}")

    def _check(self, found: Json | None, version: str) -> None:
        if found is None or found["metadata"]["resourceVersion"] != version:
            raise Conflict("has changed")

    def _written(self, what: str) -> None:
        self.writes.append(what)
        self.after()


def _copy(obj: Any) -> Any:
    """Copy JSON, many times as fast as ``deepcopy`` does."""
    return marshal.loads(marshal.dumps(obj, 2))  # from version 3 on what is twice stays one


class Gated:
    """A cluster seen by one run: *gate* is called before every request, and after every write."""

    def __init__(self, cluster: FakeCluster, gate: Callable[[], None]) -> None:
        self._cluster = cluster
        self._gate = gate

    def get_secret(self, name: str) -> Json | None:
        self._gate()
        return self._cluster.get_secret(name)

    def get_configuration(self, kind: Kind, name: str) -> Json | None:
        self._gate()
        return self._cluster.get_configuration(kind, name)

    def create_secret(self, obj: Json) -> None:
        self._gate()
        self._cluster.create_secret(obj)
        self._gate()

    def replace_secret(self, name: str, obj: Json) -> None:
        self._gate()
        self._cluster.replace_secret(name, obj)
        self._gate()

    def patch_configuration(self, kind: Kind, name: str, patch: list[Json]) -> None:
        self._gate()
        self._cluster.patch_configuration(kind, name, patch)
        self._gate()


class World:
    """A cluster, its clock, and everything a client may have seen of it lately."""

    def __init__(self, wanted: Settings | None = None) -> None:
        self.clock = Clock()
        self.settings = wanted or settings()
        self.cluster = FakeCluster(after=self.remember)
        self.cluster.install()
        self.said: list[str] = []
        self.served: Served = {}
        self.watched = False
        self._serving: list[tuple[datetime, Certificate]] = []
        self._bundles: dict[tuple[Any, int], list[tuple[datetime, tuple[Certificate, ...]]]] = {}

    def say(self, message: str, /, **fields: object) -> None:
        self.said.append(": ".join([message, *map(str, fields.values())]))

    def run(
        self, gate: Callable[[], None] = lambda: None, *, until: datetime | None = None
    ) -> Wait | Done:
        env = Environment(self.clock, self.clock.sleep, lambda: self.served, self.say)
        return rotate(Gated(self.cluster, gate), self.settings, env, until=until)

    def kill_after(self, writes: int) -> Callable[[], None]:
        """Make a gate that ends the process after so many writes.

        Where between two writes it ends makes no difference to what it leaves.
        """
        last = len(self.cluster.writes) + writes

        def gate() -> None:
            if len(self.cluster.writes) >= last:
                raise Killed

        return gate

    def run_to_the_end(self) -> Done:
        """Run as a CronJob does, until nothing is left to do."""
        for _ in range(20):
            found = self.run()
            if isinstance(found, Done):
                return found
            self.clock.now = found.until
        raise AssertionError(f"never done: {found}")

    def observed(self) -> Observed:
        return observe(self.cluster, self.settings)

    def serving(self) -> Certificate:
        found = self.observed().serving.certificate
        assert found is not None
        return found

    def authority(self) -> Certificate:
        found = self.observed().authority.certificate
        assert found is not None
        return found

    def remember(self) -> None:
        """Note what is there now, and check what must hold of now and of lately."""
        now = self.clock.now
        obj = self.cluster.secrets.get(TLS)
        certificate = parse_secret(TLS, Purpose.SERVING, obj).certificate
        if certificate is not None and not self._is_last(self._serving, certificate):
            if self._serving and not self._serving[-1][1].is_valid_at(now):
                self._begin_anew()  # nobody was served any more: there is nothing to break
            self._serving.append((now, certificate))
        for (kind, name), each in self.cluster.configurations.items():
            bundles = parse_configuration(kind, name, each).bundles
            for index, bundle in enumerate(bundles):
                history = self._bundles.setdefault(((kind, name), index), [])
                if not self._is_last(history, bundle):
                    history.append((now, bundle))
        if self.watched:
            self.check()

    def forget(self) -> None:
        """Let time pass until only what is there now is remembered; it is watched from now on."""
        self.clock.now += timedelta(hours=1)
        self._begin_anew()
        self.watched = True

    def _begin_anew(self) -> None:
        del self._serving[:-1]
        for history in self._bundles.values():
            del history[:-1]

    def check(self) -> None:
        """Every API server accepts every webhook, however late both are within what is allowed."""
        now = self.clock.now
        current = [each for each in _lately(self._serving, now - GRACE) if each.is_valid_at(now)]
        for history in self._bundles.values():
            for bundle in _lately(history, now - SETTLE):
                for certificate in current:
                    assert any(is_issued_by(certificate, each) for each in bundle), self.said

    @staticmethod
    def _is_last(history: Sequence[tuple[datetime, Any]], value: object) -> bool:
        return bool(history) and history[-1][1] == value

    def accepted_now(self) -> bool:
        observed, now = self.observed(), self.clock.now
        serving = observed.serving.certificate
        return (
            serving is not None
            and serving.is_valid_at(now)
            and all(
                any(is_issued_by(serving, each) and each.is_valid_at(now) for each in bundle)
                for found in observed.configurations
                for bundle in found.bundles
            )
        )


def _lately(history: Sequence[tuple[datetime, Any]], since: datetime) -> Iterator[Any]:
    """Give each value that was current at some time after *since*."""
    for index, (_, value) in enumerate(history):
        ended = history[index + 1][0] if index + 1 < len(history) else None
        if ended is None or ended > since:
            yield value


@dataclass
class _Turn:
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    done: bool = False
    error: BaseException | None = None

    def gate(self) -> None:
        self.stopped.release()
        assert self.go.acquire(timeout=60)


def interleave(
    runs: Sequence[Callable[[Callable[[], None]], object]], schedule: Sequence[int]
) -> None:
    """Let several runs take turns, call by call, as *schedule* says; then each to its end."""
    turns = [_Turn() for _ in runs]

    def work(turn: _Turn, run: Callable[[Callable[[], None]], object]) -> None:
        turn.gate()
        try:
            run(turn.gate)
        except (CertsError, AssertionError, Killed) as error:
            turn.error = error
        turn.done = True
        turn.stopped.release()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(turns, runs, strict=True)]
    for thread, turn in zip(threads, turns, strict=True):
        thread.start()
        assert turn.stopped.acquire(timeout=60)
    for choice in _choices(schedule, len(turns)):
        alive = [each for each in turns if not each.done]
        if not alive:
            break
        turn = alive[choice % len(alive)]
        turn.go.release()
        assert turn.stopped.acquire(timeout=60)
    for thread in threads:
        thread.join(60)
    for turn in turns:
        if turn.error is not None:
            raise turn.error


def _choices(schedule: Sequence[int], runs: int) -> Iterator[int]:
    yield from schedule
    for choice in range(100_000):
        yield choice // 50 % runs  # a fair end: each may finish what it is at
