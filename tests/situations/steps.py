"""The steps of a pod's admission and start, and a trap at one of them."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from contract.demand import ContainerKind
from simulator.kubelet.pods import parse_pod
from simulator.kubelet.settings import HookPoint

START = "PreStartContainer"


@dataclass(frozen=True, slots=True, order=True)
class Step:
    container: str
    what: str
    resource: str
    when: str

    def __str__(self) -> str:
        words = (self.when, self.what, self.container, self.resource.rpartition("-")[2])
        return "-".join(each for each in words if each)


def step_of(moment: HookPoint) -> Step:
    return Step(moment.container, moment.what, moment.resource, moment.when)


def steps_of(manifest: dict[str, Any]) -> list[Step]:
    """Every step that the kubelet takes with a pod, from its shape alone (facts K1, K2, K7, K10).

    The kubelet's random order of a container's resources does not change them.
    """
    found: list[Step] = []

    def both(container: str, what: str, resource: str = "") -> None:
        found.extend(Step(container, what, resource, when) for when in ("before", "after"))

    pod = parse_pod(manifest)
    reusable: Counter[str] = Counter()
    for container in pod.containers:
        for resource, size in sorted(container.limits.items()):
            reused = min(reusable[resource], size)
            if reused < size:  # else there is no preferred call (K7)
                both(container.name, "GetPreferredAllocation", resource)
            both(container.name, "Allocate", resource)
            if container.kind is ContainerKind.INIT:
                reusable[resource] += size - reused
            else:
                reusable[resource] -= reused
        both(container.name, "Checkpoint")
    for container in pod.containers:
        for resource in sorted(container.limits):
            both(container.name, START, resource)
    return found


class Trap:
    """Records the steps of one pod, and springs once at one of them."""

    def __init__(self) -> None:
        self.passed: list[Step] = []
        self.sprung = threading.Event()
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._uid = ""
        self._at: Step | None = None
        self._action: Callable[[], None] = lambda: None

    def watch(self, uid: str) -> None:
        self._uid = uid

    def set(self, at: Step, action: Callable[[], None]) -> None:
        self._at, self._action = at, action

    def __call__(self, moment: HookPoint) -> None:
        if moment.pod.uid != self._uid:
            return
        step = step_of(moment)
        with self._lock:
            self.passed.append(step)
            if step != self._at or self.sprung.is_set():
                return
            self.sprung.set()
        try:
            self._action()
        finally:
            self.done.set()
