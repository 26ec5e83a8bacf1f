"""Nodes that the agent cannot distinguish: a wrong guess on one is needed on the other.

Each test shows that the agent's inputs are equal on both (docs/architecture.md, "Where the agent
may guess wrong").
"""

from typing import Any

import pytest

from agent.errors import PlacementError
from contract.resource import Resource
from tests.agent.builders import CORE, MEMORY
from tests.in_memory.node import Node
from tests.in_memory.pods import NAMES, Container, Pod, gpu, init, make_pod


def same_in_both(number: int, name: str, *containers: Container, **annotations: str) -> Pod:
    """Return a pod whose UID and times are the same on both nodes."""
    pod = make_pod(name, *containers, at=1_736_928_000 + number, **annotations)
    pod.number, pod.uid = number, f"uid-{number}"
    return pod


def inputs(node: Node) -> dict[str, Any]:
    """Return all that the agent can read, and what the kubelet can offer it."""
    return {
        "List": sorted(node.look(), key=str),
        "checkpoint": node.read().pods,
        "watch": sorted(node.watch.cache.pods(), key=str),
        "GET": None if node.api.away else sorted(map(str, (p.manifest() for p in node.api.pods()))),
        "saved": node.store.text,
        "offered": [sorted(node.kubelet.free(each)) for each in Resource],
    }


def test_the_first_resource_is_placed_before_wishes_can_be_read() -> None:
    """On one of the nodes the chosen card has no slots for the other resource."""
    seen, cornered = [], []
    for uuid in ("GPU-0", "GPU-1"):
        node = Node()
        node.api.away = True
        pod = same_in_both(1, "a", gpu(10, 4), use_gpu_uuid=uuid)
        node.bind(pod, seen=False)
        node.begin(pod)
        seen.append(inputs(node))
        node.serve(pod, "main", CORE)
        node.api.away = False
        node.watch.deliver()
        try:
            node.serve(pod, "main", MEMORY)
        except PlacementError as error:
            cornered.append(str(error))
    assert seen[0] == seen[1]
    assert len(cornered) == 1


def running_on_a_card_against_its_annotation(*, edited: bool) -> tuple[Node, Pod]:
    """The annotation was there before the placement and could not be read, or was edited since."""
    node = Node()
    wish = {NAMES.use_gpu_uuid: "GPU-1"}
    pod = same_in_both(1, "a", gpu(10, 4))
    if not edited:
        pod.annotations |= wish
        node.api.away = True
    node.bind(pod, seen=edited)
    node.api.away = True
    node.admit(pod)
    node.start(pod)
    assert node.cards(pod) == ["GPU-0"]
    if edited:
        pod.annotations |= wish
    for number in (2, 3):  # the saved state has the last two pods
        other = same_in_both(number, f"other-{number}", gpu(10, 4))
        node.bind(other, seen=False)
        node.admit(other)
    node.api.away = False
    node.restart_agent()
    node.publish_statuses()
    return node, pod


def test_a_running_pod_was_placed_before_its_annotation_could_be_read_or_before_it_was_edited() -> (
    None
):
    """A veto would end the restarts of a pod whose annotation was edited."""
    nodes = [running_on_a_card_against_its_annotation(edited=each) for each in (True, False)]
    assert inputs(nodes[0][0]) == inputs(nodes[1][0])
    for node, pod in nodes:
        node.start(pod)
        assert node.decision_log.refusals == []


def first_call_of_a_kubelet(*, rejected: bool) -> tuple[Node, Pod]:
    """Two entries without devices: of which pod is the call?

    A deleted pod's, beside the target; or that of a pod that the kubelet has rejected before any
    call, which only the old ``List`` shows, beside the target with the deleted pod's name.
    """
    node = Node(active_only=not rejected)
    containers = init(10, 4), gpu(10, 2)
    deleted = same_in_both(1, "a", *containers)
    other, again = same_in_both(2, "other", *containers), same_in_both(3, "a", *containers)
    node.admit(deleted)
    node.start(deleted, "init")
    node.start(deleted)
    node.restart_kubelet()
    node.begin(deleted)
    node.api.remove(deleted)
    node.kubelet.deleted_by_force(deleted, keeps=False)
    node.api.add(other)
    node.api.add(again)
    if rejected:
        node.kubelet.end(deleted)
        node.kubelet.bind(other)
        node.rejected(other)
    target = again if rejected else other
    node.kubelet.bind(target)
    node.begin(target)
    return node, target


def test_a_pod_that_is_listed_was_deleted_or_the_other_one_rejected() -> None:
    """The agent does not know the form of ``List``."""
    nodes = [first_call_of_a_kubelet(rejected=each) for each in (True, False)]
    assert inputs(nodes[0][0]) == inputs(nodes[1][0])
    for node, _ in nodes:
        node.call()
    named = [node.decision_log.everything[-1].ref for node, _ in nodes]
    assert named[0] == named[1], "one of the two is wrong"
    assert nodes[0][1].key != nodes[1][1].key


def refused_before_list_came_back(*, first: str) -> tuple[Node, Pod]:
    """Two pods with equal requests; *first* was refused while ``List`` was unavailable."""
    node = Node(active_only=False)
    pods = {name: same_in_both(at, name, gpu(10, 2)) for at, name in enumerate("ab")}
    node.bind(*pods.values())
    refused, target = pods.pop(first), *pods.values()
    node.list_error, node.unhealthy = "down", {"GPU-0": "xid", "GPU-1": "xid"}
    with pytest.raises(PlacementError):
        node.admit(refused)
    node.list_error, node.unhealthy = "", {}
    node.begin(target)
    return node, target


def test_either_of_two_pods_was_refused_while_list_was_unavailable() -> None:
    """The old ``List`` keeps a rejected pod (K8), and the API shows the rejection later."""
    nodes = [refused_before_list_came_back(first=each) for each in "ab"]
    assert inputs(nodes[0][0]) == inputs(nodes[1][0])
    for node, _ in nodes:
        node.call()
    assert nodes[0][0].decision_log.last.target == nodes[1][0].decision_log.last.target
    assert nodes[0][1].key != nodes[1][1].key, "one of the two is wrong"
