"""``PreStartContainer``: a container starts proven by the checkpoint, or is vetoed."""

from collections.abc import Mapping
from typing import Any

import pytest

from agent.allocator.slots import DeviceTable
from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from contract.inventory import Inventory
from contract.resource import Resource
from tests.agent.builders import BLOCK, CORE, MEMORY, card
from tests.in_memory.node import Node
from tests.in_memory.pods import OTHER_PLUGIN, Pod, failing, gpu, init, make_pod, sidecar


def ids(card: int, numbers: range) -> list[str]:
    return [f"GPU-{card}::{number}" for number in numbers]


NOT_SHOWN = "the kubelet's checkpoint shows no container with exactly these devices"


def veto(node: Node, pod: Pod, container: str = "main") -> str:
    with pytest.raises(GrantError) as caught:
        node.start(pod, container)
    assert node.decision_log.refusals[-1].reason == str(caught.value)
    return str(caught.value)


CORES, BLOCKS = ids(0, range(30)), ids(0, range(8))


def hold(node: Node, pod: Pod, held: Mapping[Resource, list[str]], container: str = "main") -> Pod:
    """Let a container of a bound pod hold slots that this agent has not allocated."""
    node.bind(pod)
    node.kubelet.know(pod)
    node.kubelet.hold(pod, container, held)
    node.allocator.refresh()
    return pod


def start_by_checkpoint(node: Node, pod: Pod) -> None:
    assert node.held(pod)
    for resource, held in node.held(pod).items():
        node.allocator.prestart(resource, sorted(held))


def unproven(node: Node) -> list[tuple[str, str]]:
    return [(str(each.ref), each.reason) for each in node.decision_log.of("unproven")]


def test_containers_of_every_kind_are_proven_by_the_checkpoint_without_list(node: Node) -> None:
    pod = node.admit(make_pod("a", init(40, 10), sidecar(10, 2), gpu(30, 8)))
    node.restart_agent()
    node.allocator.refresh()
    calls_of_list = node.asked
    for name in ("init", "side", "main"):
        node.start(pod, name)
    assert node.asked == calls_of_list
    assert node.decision_log.refs("prestart") == ["a/init"] * 2 + ["a/side"] * 2 + ["a/main"] * 2
    assert set(node.decision_log.evidence("prestart")) == {Evidence.RECORD}
    assert not unproven(node)
    assert not node.decision_log.of("corrected")


# --- the checkpoint is one container old: K33 ----------------------------------------------


def test_a_checkpoint_that_is_one_container_old_is_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next write has what was overtaken."""
    pod = make_pod("a", init(30, 8))
    node.begin(pod)
    node.kubelet.overtake()
    node.admit(pod)

    def pause(_seconds: float) -> None:
        node.paused += 1
        if node.paused == 2:
            node.kubelet.state.write()

    monkeypatch.setattr(node, "pause", pause)
    node.restart_agent()
    node.allocator.refresh()
    node.start(pod, "init")
    assert node.decision_log.refs("prestart") == ["a/init", "a/init"]
    assert node.paused == 2
    assert not unproven(node)


def test_a_late_checkpoint_with_the_slots_at_a_rejected_pod_identifies_no_target(
    node: Node,
) -> None:
    """Another plugin failed when it had its cores; the kubelet gave them to the next pod."""
    rejected = failing(make_pod("rejected", gpu(30, 8, other=True)))
    node.begin(rejected, (CORE, OTHER_PLUGIN, MEMORY))
    node.call()
    node.call()
    cores = node.held(rejected)[CORE]
    node.kubelet.overtake()  # what is written in mid-admission (K30) comes last
    node.call()
    node.begin(failing(make_pod("also", gpu(30, 8, other=True))), (MEMORY, OTHER_PLUGIN))
    for _ in range(3):
        node.call()
    pod = node.admit(make_pod("a", gpu(30, 16)))
    assert node.held(pod)[CORE] == cores
    node.start(pod)
    assert unproven(node) == [("default/a container main", NOT_SHOWN)] * 2
    assert not node.decision_log.of("corrected")


@pytest.mark.parametrize("first", [CORE, MEMORY])
def test_a_container_with_more_slots_than_the_checkpoint_shows_is_not_proven(
    node: Node, first: Resource
) -> None:
    """K30: a device list came in the middle of its admission, and the write after it was late."""
    pod = node.begin(make_pod("a", gpu(30, 8)), (first, first.other))
    node.serve(pod, "main", first)
    node.kubelet.state.write()
    node.kubelet.overtake()
    node.admit(pod, (first, first.other))
    node.start(pod)
    assert [reason for _, reason in unproven(node)] == [NOT_SHOWN]
    assert node.decision_log.refs("prestart") == ["a/main"]


# --- a resource that the kubelet did not know: K11 -----------------------------------------


@pytest.mark.parametrize("container", ["init", "main"])
@pytest.mark.parametrize("given", [CORE, MEMORY])
@pytest.mark.parametrize("list_error", ["", "rate limited"])
def test_a_container_for_which_the_kubelet_skipped_a_resource_does_not_start(
    node: Node, given: Resource, container: str, list_error: str
) -> None:
    device_ids = {CORE: CORES, MEMORY: BLOCKS}[given]
    hold(node, make_pod("a", init(30, 8), gpu(30, 8)), {given: device_ids}, container)
    node.list_error = list_error
    missing = given.other
    requested = {CORE: 30, MEMORY: 8}[missing]
    with pytest.raises(GrantError) as vetoed:
        node.allocator.prestart(given, device_ids)
    assert str(vetoed.value) == (
        f"no {missing.unit}, but the container requests {requested}: the kubelet did not know the "
        "resource when it admitted the pod; delete the pod, and its successor gets both"
    )


@pytest.mark.parametrize("by", ["the start", "the next List"])
def test_a_wrong_guess_is_corrected_counted_and_written(node: Node, by: str) -> None:
    """Without ``List``, ``b`` is guessed by its admission rank, and it was ``a``."""
    right, guessed = make_pod("a", gpu(30, 8), at=2), make_pod("b", gpu(30, 8), at=1)
    node.bind(right, guessed)
    node.list_error = "rate limited"
    node.admit(right)
    assert set(node.decision_log.refs("allocate")) == {"b/main"}
    assert node.written(guessed)["main"].evidence is Evidence.ORDER
    if by == "the start":
        node.start(right)
        assert node.decision_log.refs("prestart") == ["a/main", "a/main"]
        assert len(node.decision_log.of("corrected")) == 2
        node.list_error = ""
        node.allocator.refresh()
    else:
        node.list_error = ""
    node.admit(guessed)
    node.allocator.refresh()
    assert [
        (each.resource, str(each.ref), each.reason)
        for each in sorted(node.decision_log.of("corrected"), key=lambda each: str(each.resource))
    ] == [
        (resource, "default/b container main", "it was default/a container main")
        for resource in (CORE, MEMORY)
    ]
    assert node.written(right) == {"main": Allocation(("GPU-0",), 30, 8, Evidence.RECORD)}
    assert node.written(guessed)["main"].evidence is Evidence.WITNESS
    node.start(guessed)
    assert node.decision_log.refs("prestart")[-2:] == ["b/main", "b/main"]


# --- the veto ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "cores", "memory", "why"),
    [
        ((40, 8), CORES, BLOCKS, "30 cores, but the container requests 40"),
        ((30, 9), CORES, BLOCKS, "8 memory blocks, but the container requests 9"),
        ((30, 8), CORES, ids(1, range(8)), "memory on GPU-1, but the container's cores are on GPU"),
        ((2, 8), ids(9, range(2)), BLOCKS, "names a card this node does not have"),
    ],
)
def test_a_container_whose_slots_contradict_each_other_or_its_request_is_vetoed(
    node: Node, requested: tuple[int, int], cores: list[str], memory: list[str], why: str
) -> None:
    pod = hold(node, make_pod("a", gpu(*requested)), {CORE: cores, MEMORY: memory})
    with pytest.raises(GrantError, match=why):
        start_by_checkpoint(node, pod)


@pytest.mark.parametrize(
    ("cores", "wish", "reason"),
    [
        (30, {"nouse_gpu_uuid": "GPU-0"}, "GPU-0 by nouse-gpu-uuid"),
        (200, {"gpu_link": "nvlink"}, "GPU-0, GPU-1 by gpu-link (nvlink)"),
    ],
)
def test_cards_that_wishes_exclude_are_vetoed_if_the_wishes_were_not_known(
    node: Node, cores: int, wish: dict[str, Any], reason: str
) -> None:
    node.api.away = True
    pod = node.admit(make_pod("a", gpu(cores, 8), **wish))
    node.api.away = False
    node.watch.deliver()
    assert veto(node, pod) == (
        f"cards that the pod's annotations rule out: {reason}; the pod was not "
        "known when they were chosen: delete it, and its successor is placed again"
    )


def test_a_mig_instance_that_a_whole_card_got_otherwise_is_vetoed_unless_it_is_named() -> None:
    """A kubelet may choose other devices than those that the agent prefers."""
    table = DeviceTable(Inventory((card(uuid="MIG-0"),)), BLOCK)
    cores = [f"MIG-0::{number}" for number in range(100)]
    pods = (
        make_pod("named", gpu(100, 1), use_gpu_uuid="MIG-0"),
        make_pod("share", gpu(30, 1)),
        make_pod("whole", gpu(100, 1)),
    )
    nodes = [Node(table=table) for _ in pods]
    for node, pod in zip(nodes, pods, strict=True):
        hold(node, pod, {CORE: cores[: pod.containers[0].cores], MEMORY: ["MIG-0::0"]})
    start_by_checkpoint(nodes[0], pods[0])
    start_by_checkpoint(nodes[1], pods[1])
    with pytest.raises(GrantError, match="MIG-0, a MIG instance that they do not name"):
        start_by_checkpoint(nodes[2], pods[2])
