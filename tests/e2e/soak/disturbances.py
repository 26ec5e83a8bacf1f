"""What a soak does to the node, one after the other, and how long the node takes to recover."""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError

import yaml

from agent.allocator.slots import Slot
from contract.resource import Resource
from tests.e2e.cluster import ApiError, Cluster, Json, KubectlError
from tests.e2e.ground import is_ready, wait
from tests.e2e.installation import AGENTS, KUBE_SCHEDULER, NAMESPACE, WEBHOOK, Deployed, kill
from tests.e2e.manifests import CARDS
from tests.e2e.soak.failures import CARDS as OF_CARDS
from tests.e2e.soak.failures import KUBELET, PROXY, RUNTIME, Disturbance

_READY_SECONDS = 150.0
_READ_SECONDS = 15.0
"""The agent has read a cordon, or an edited cards file, after so long."""
_HOLD_SECONDS = 20.0
AGENT, PROXIES, HOOKS = "gpu-turnstile-agent", "gpu-turnstile-proxy", "gpu-turnstile-webhook"


class Turns:
    """Whether disturbances are over, and whether one is under way."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.busy = threading.Event()


class Disturber:
    """Disturbs one installation.

    Attributes:
        done: all disturbances so far; the one under way has no end yet.
        recovered: seconds until the node offered all and all pods of ours were ready, by name.
        findings: sentences about what must not be.
    """

    def __init__(self, deployed: Deployed, *, before: Callable[[], None]) -> None:
        """*before* is called before each disturbance, for what it would destroy."""
        self._deployed = deployed
        self._ground = deployed.ground
        self._agents = deployed.kubectl.inside(AGENTS)
        self._ours = deployed.kubectl.inside(NAMESPACE)
        self._before = before
        config = self._ground.settings.kubeconfig
        self._of_agents = Cluster(config, AGENTS)
        self._of_ours = Cluster(config, NAMESPACE)
        self._cards = itertools.cycle(range(CARDS))
        self.done: list[Disturbance] = []
        self.recovered: defaultdict[str, list[float]] = defaultdict(list)
        self.findings: list[str] = []
        settings = self._ground.settings
        acts: dict[str, tuple[Callable[[], None], set[str]]] = {
            "agent killed": (self._kill_agent, set()),
            "card cordoned": (self._cordon, {OF_CARDS}),
            "proxy killed": (self._kill_proxy, {PROXY}),
            "webhook's pod deleted": (self._delete_webhook, set()),
            "card unhealthy in the cards file": (self._edit_cards, {OF_CARDS}),
            "agent upgraded": (deployed.installation.roll_agents, set()),
        }
        if settings.kill_kubelet:
            acts["kubelet killed"] = self._ground.kill_kubelet, {KUBELET}
        if settings.restart_kubelet:
            acts["kubelet restarted"] = self._ground.restart_kubelet, {KUBELET}
        if settings.restart_runtime:
            acts["container runtime restarted"] = self._ground.restart_runtime, {RUNTIME}
        if settings.scheduler_image:
            acts["extender killed"] = self._kill_extender, set()
        self._acts = acts
        self.all = tuple(acts)
        self.mild = tuple(name for name, (_, kinds) in acts.items() if kinds == {OF_CARDS})
        """Those that end no process."""
        self._turns = {True: itertools.cycle(self.all), False: itertools.cycle(self.mild)}

    @contextmanager
    def disturbing(self, *, every: float, kills: bool) -> Iterator["Turns"]:
        """Disturb once in *every* seconds until it is left."""
        turns = Turns()
        with ThreadPoolExecutor(1) as pool:
            running: Future[None] = pool.submit(self._run, turns, every, kills)
            try:
                yield turns
            finally:
                turns.over.set()
        running.result()

    def _run(self, turns: "Turns", every: float, kills: bool) -> None:
        due = time.monotonic() + every / 2
        while not turns.over.wait(max(0.0, due - time.monotonic())):
            due = max(due + every, time.monotonic() + every / 4)
            turns.busy.set()
            try:
                self._disturb(next(self._turns[kills]))
            finally:
                turns.busy.clear()

    def _disturb(self, name: str) -> None:
        act, kinds = self._acts[name]
        self._before()
        began = time.monotonic()
        self.done.append(Disturbance(name, frozenset(kinds), began, float("inf")))
        try:
            act()
            wait(f"all is ready after {name}", self._is_ready, within=_READY_SECONDS, pause=1)
        except (AssertionError, ApiError, KubectlError, SubprocessError) as error:
            self.findings.append(f"{time.strftime('%H:%M:%S')} {name}: {error}")
        ended = time.monotonic()
        self.done[-1] = Disturbance(name, frozenset(kinds), began, ended)
        self.recovered[name].append(ended - began)

    def pods(self, app: str) -> list[Json]:
        """Return the pods of a program of ours on this node, the oldest first."""
        cluster = self._of_agents if app in (AGENT, PROXIES) else self._of_ours
        found = (
            each
            for each in cluster.pods().values()
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/name") == app
        )
        mine = [each for each in found if each["spec"].get("nodeName") == self._ground.node]
        return sorted(mine, key=lambda each: str(each["metadata"]["creationTimestamp"]))

    def _is_ready(self) -> bool:
        apps = [AGENT, PROXIES, HOOKS]
        apps += [KUBE_SCHEDULER] if self._ground.settings.scheduler_image else []
        pods = [pod for app in apps for pod in self.pods(app)]
        return all(map(is_ready, pods)) and self._ground.offered() == CARDS * 100

    # --- acts --------------------------------------------------------------------------

    def _kill_agent(self) -> None:
        kill("agent", self.pods(AGENT)[0]["metadata"]["uid"])

    def _kill_proxy(self) -> None:
        kill("proxy", self.pods(PROXIES)[0]["metadata"]["uid"])

    def _kill_extender(self) -> None:
        leader = self._deployed.installation.holder(KUBE_SCHEDULER)
        assert leader is not None, "no kube-scheduler leads"
        kill("scheduler", leader["metadata"]["uid"])

    def _delete_webhook(self) -> None:
        name = self.pods(HOOKS)[0]["metadata"]["name"]
        self._ours.run("delete", "pod", name, "--wait=true", within=120)
        self._deployed.installation.rolled_out(NAMESPACE, WEBHOOK)

    def _cordon(self) -> None:
        card = next(self._cards)

        def change(word: str) -> None:
            program = Path(sys.executable).with_name("kubectl-gpu")
            config = f"--kubeconfig={self._ground.settings.kubeconfig}"
            command = [str(program), word, config, self._ground.node, str(card)]
            subprocess.run(command, check=True, timeout=60, capture_output=True)

        change("cordon")
        try:
            self._hold(card)
        finally:
            change("uncordon")

    def _edit_cards(self) -> None:
        card = next(self._cards)
        found = self._agents.items("configmaps", "--selector=app.kubernetes.io/component=try-out")
        (name,) = (each["metadata"]["name"] for each in found)
        before = found[0]["data"]["cards.yaml"]
        edited = yaml.safe_load(before)
        (one,) = (each for each in edited["cards"] if each["index"] == card)
        one["health"] = "Xid 79"

        def write(text: str) -> None:
            patch = json.dumps({"data": {"cards.yaml": text}})
            self._agents.run("patch", "configmap", name, "--type=merge", f"--patch={patch}")
            # The kubelet updates the file now, not when it next syncs the pod.
            now = f"e2e/look={time.monotonic():.0f}"
            pods = f"--selector=app.kubernetes.io/name={AGENT}"
            self._agents.run("annotate", "pods", pods, "--overwrite", now)

        write(yaml.safe_dump(edited))
        try:
            wait("a card less", lambda: self._ground.offered() < CARDS * 100, within=90, pause=1)
            self._hold(card)
        finally:
            write(before)

    def _hold(self, card: int) -> None:
        """Let some time pass in which no further pod may get a card."""
        time.sleep(_READ_SECONDS)
        before = self._pods_on(card)
        time.sleep(_HOLD_SECONDS)
        self.findings += [f"{each} got card {card}" for each in self._pods_on(card) - before]

    def _pods_on(self, card: int) -> set[str]:
        return {
            pod
            for (pod, _), held in self._ground.listed().items()
            if any(_index(each) == card for each in held.get(Resource.CORE, ()))
        }

    def summary(self) -> Sequence[tuple[str, int, float, float]]:
        """Return each disturbance with how often, and the median and longest recovery."""
        times = Counter(each.name for each in self.done)
        return [
            (name, times[name], sorted(took)[len(took) // 2], max(took))
            for name, took in self.recovered.items()
        ]


def _index(device_id: str) -> int:
    """Return the index of a card of the overlay ``try-out``: its UUID begins with it."""
    return int(Slot.parse(device_id).card.split("-")[1], 16)
