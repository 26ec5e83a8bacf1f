"""Situation 8: the kubelet offers, or allocates, a slot that a running container holds (K15).

A ``List`` while an ``Allocate`` is in flight makes the kubelet forget the devices of this call, if
a pod has ended just then. Here it is the ``List`` of another client, such as a monitor.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent.kubelet.podresources import PodResources
from simulator.kubelet.node import Kubelet
from simulator.kubelet.settings import HookPoint
from tests.agent.fakes import DEADLINE_S, eventually
from tests.situations.build import NAMES, Node, a_node, a_pod, gpu

CARD = "GPU-00000000-5eed-4a2d-8c1f-000000000000"
SLOTS = {NAMES.core: 100, NAMES.memory: 32}
ENDS = "which is unexpected"


each_resource = pytest.mark.parametrize("resource", [NAMES.core, NAMES.memory])


class Forgetfulness:
    """A hook that makes the kubelet forget the devices of some ``Allocate`` calls.

    A victim is a pod that ends as soon as it is started, which happens when its end is needed.
    """

    def __init__(self) -> None:
        self._victims: list[str] = []
        self._released: dict[str, threading.Event] = {}
        self.targets: set[tuple[str, str, str]] = set()
        self.forgotten: list[tuple[str, str, str]] = []
        self.kubelet: Kubelet | None = None
        self.monitor: PodResources | None = None

    def victim(self, node: Node) -> None:
        """Admit a pod that ends when it is released."""
        name = f"victim-{len(self._released)}"
        self._released[name] = threading.Event()
        node.bind(a_pod(name, gpu("c0", 1, 1), annotations={"simulator/run-seconds": "0"}))
        eventually(lambda: node.held_device_ids(f"uid-{name}"), f"{name} is admitted")
        self._victims.append(name)

    def forget(self, node: Node, pod: str, container: str = "c0", *resources: str) -> None:
        """Have the kubelet forget devices of this container, by default of both resources."""
        for resource in resources or (NAMES.core, NAMES.memory):
            self.victim(node)
            self.targets.add((pod, container, resource))

    def __call__(self, moment: HookPoint) -> None:
        if moment.when != "before":
            return
        if moment.what == "PreStartContainer" and moment.pod.name in self._released:
            assert self._released[moment.pod.name].wait(DEADLINE_S)
        target = moment.pod.name, moment.container, moment.resource
        if moment.what == "Allocate" and target in self.targets:
            assert self.kubelet is not None
            assert self.monitor is not None
            victim = self._victims.pop(0)
            self._released[victim].set()
            eventually(lambda: self._ended(victim), f"{victim} has ended")
            self.monitor.list(within=DEADLINE_S)
            self.forgotten.append(target)

    def _ended(self, pod: str) -> bool:
        assert self.kubelet is not None
        return any(each.event == "end" and each.pod == pod for each in self.kubelet.trace.events)

    def end(self) -> None:
        for each in self._released.values():
            each.set()


@contextmanager
def forgetful_node(**options: Any) -> Iterator[tuple[Node, Forgetfulness]]:
    """A node of one card whose kubelet can be made to forget."""
    hook = Forgetfulness()
    kubelet = {"hook": hook, **options.pop("kubelet", {})}
    with a_node(**{"cards": 1, **options}, kubelet=kubelet) as node:
        hook.kubelet = node.kubelet
        hook.monitor = PodResources(node.record_socket, resources={})
        try:
            yield node, hook
        finally:
            hook.end()
            hook.monitor.close()


@each_resource
@pytest.mark.parametrize("seed", range(2))
def test_slots_that_the_kubelet_forgot_are_not_allocated_to_the_next_pod(
    seed: int, resource: str
) -> None:
    with forgetful_node(seed=seed) as (node, hook):
        hook.forget(node, "holder", "c0", resource)
        node.admit([a_pod("holder", gpu("c0", 30, 8))])
        node.admit([a_pod("next", gpu("c0", 30, 8))])
        [offered] = [
            each.available for each in node.preferred_for("uid-next") if each.resource == resource
        ]
        assert offered == SLOTS[resource], "the kubelet offers all, held or not"
        assert not node.held_device_ids("uid-holder") & node.held_device_ids("uid-next")
        node.assert_right("uid-holder", "uid-next")
        node.assert_sound()


@pytest.mark.parametrize("seed", range(3))
def test_slots_allocated_without_a_preference_are_refused_and_the_next_pod_is_served(
    seed: int,
) -> None:
    """Exactly the requested number seems free, so the kubelet makes no preferred call."""
    with forgetful_node(seed=seed, kubelet={"preferred_when_exact": False}) as (node, hook):
        node.admit([a_pod("other", gpu("c0", 30, 1))])
        hook.forget(node, "holder", "c0", NAMES.core)
        node.admit([a_pod("holder", gpu("c0", 40, 1))])
        node.admit([a_pod("greedy", gpu("c0", 70, 1))])  # 30 are free, 40 forgotten
        held = sorted(
            each for kind, each in node.held_device_ids("uid-holder") if kind == NAMES.core
        )
        if node.preferred_for("uid-greedy"):  # its memory came first
            assert node.refusal_message("uid-greedy").endswith(
                f"{CARD}: 30 of 70 cores free, {ENDS}"
            )
        else:
            assert node.refusal_message("uid-greedy") == (
                "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition "
                "desc = gpu-turnstile: 40 cores are held by another container: "
                f"{', '.join(held[:3])}, {ENDS}"
            )
        node.admit([a_pod("next", gpu("c0", 30, 1))])
        node.assert_right("uid-other", "uid-holder", "uid-next")
        node.assert_sound()


@each_resource
@pytest.mark.parametrize("seed", range(2))
def test_reusable_slots_are_not_allocated_to_the_next_pod(seed: int, resource: str) -> None:
    """``List`` never shows it (K4): only the agent's own assignment has it."""
    with forgetful_node(seed=seed) as (node, hook):
        hook.forget(node, "holder", "init", resource)
        node.admit([a_pod("holder", gpu("c0", 5, 1), init=[gpu("init", 40, 12)])])
        assert len(hook.forgotten) == 1
        node.admit([a_pod("next", gpu("c0", 60, 20))])
        assert not node.held_device_ids("uid-holder") & node.held_device_ids("uid-next")
        node.assert_right("uid-holder", "uid-next")
        node.assert_sound()
        node.admit([a_pod("greedy", gpu("c0", 10, 4))])
        assert node.refusal_message("uid-greedy"), "100 cores and 32 blocks are all there are"


def test_a_kubelet_that_often_forgets_causes_no_double_allocation() -> None:
    """Pods are created and deleted; the kubelet forgets the devices of every second one."""
    with forgetful_node(cards=2) as (node, hook):
        uids: list[str] = []
        for number in range(12):
            name = f"p{number:02}"
            if number % 2:
                hook.forget(node, name)
            if len(uids) > 5:
                node.delete(uids.pop(number % 3))
            node.admit([a_pod(name, gpu("c0", 20, 6), gpu("c1", 5, 1), at=number)])
            uids.append(f"uid-{name}")
            assert node.double_grants() == 0
        assert len(hook.forgotten) == 12
        node.assert_right(*uids)
        node.assert_sound()
