"""Situation 6: the kubelet's record cannot be had; order takes over and says so."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

import agent.allocator.observer
import agent.allocator.prestart_call
from contract.allocation import Evidence
from simulator.node.diary import Diary
from simulator.node.node import Node
from tests.agent.fakes import eventually
from tests.situations.build import (
    Json,
    a_node,
    a_pod,
    assert_right,
    assert_sound,
    evidence_of,
    gpu,
    said_to,
    sidecar,
    uid_of,
)

Way = Callable[[Node], AbstractContextManager[None]]
"""A way for the record to be out of reach, for as long as the context lasts."""

# --- the ways ---------------------------------------------------------------------------


@contextmanager
def absent(node: Node) -> Iterator[None]:
    """Nobody has mounted the socket into the agent's pod."""
    aside = node.record_socket.with_suffix(".aside")
    node.record_socket.rename(aside)
    yield
    aside.rename(node.record_socket)


@contextmanager
def no_socket(node: Node) -> Iterator[None]:
    """A file stands where the socket should be, as a host path of the wrong type makes one."""
    with absent(node):
        node.record_socket.write_text("")
        yield
        node.record_socket.unlink()


@contextmanager
def mute(node: Node) -> Iterator[None]:
    """Somebody listens, takes connections and never says a word."""
    with absent(node):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(node.record_socket))
            listener.listen(64)
            yield
        node.record_socket.unlink()


@contextmanager
def denied(node: Node) -> Iterator[None]:
    node.kubelet.pod_resources.deny()
    yield
    node.kubelet.pod_resources.deny(False)


@contextmanager
def hanging(node: Node) -> Iterator[None]:
    """``List`` is taken and never answered."""
    node.kubelet.pod_resources.hang()
    yield
    node.kubelet.pod_resources.hang(False)


@contextmanager
def limited(node: Node) -> Iterator[None]:
    """Other clients use up the rate limit, for long."""
    node.kubelet.pod_resources.exhaust()
    yield
    node.kubelet.pod_resources.exhaust(False)


@contextmanager
def older(node: Node) -> Iterator[None]:
    """The kubelet serves ``v1alpha1`` only."""
    node.kubelet.pod_resources.outdate()
    yield
    node.kubelet.pod_resources.outdate(False)


WAYS: dict[Way, str | tuple[str, ...]] = {
    absent: "PodResources: UNAVAILABLE: ",
    no_socket: "PodResources: UNAVAILABLE: ",
    mute: "PodResources: ",  # a connection attempt or the call runs into the deadline
    denied: "PodResources: PERMISSION_DENIED: permission denied",
    hanging: "PodResources: DEADLINE_EXCEEDED: ",
    limited: (  # which of the two depends on whether the deadline falls into a call or a pause
        "PodResources: rate limited until the deadline",
        "PodResources: DEADLINE_EXCEEDED: ",
    ),
    older: "PodResources: UNIMPLEMENTED: unknown service v1.PodResourcesLister",
}


@contextmanager
def blind(way: Way, **options: Any) -> Iterator[tuple[Node, ExitStack]]:
    """A node whose agent starts without the record; closing the stack brings the record back."""
    with a_node(boot=False, **options) as node, ExitStack() as stack:
        node.start_kubelet()
        stack.enter_context(way(node))
        node.start_agent()
        node.wait_until_offered()
        yield node, stack


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that waits less for the record: what is shown does not need seconds."""
    monkeypatch.setattr(agent.allocator.observer, "LIST_WITHIN", 0.02)


# --- when the kubelet starts containers ---------------------------------------------------


def wait_until_admitted(node: Node) -> None:
    eventually(node.kubelet.idle, "the kubelet has come to every pod")


def some_pods() -> list[Json]:
    """Pods of many forms, in the order of their stamps."""
    return [
        a_pod("two", gpu("c0", 10, 4), gpu("c1", 10, 8), at=1),
        a_pod("twins", gpu("c0", 10, 4), gpu("c1", 10, 4), at=2),
        a_pod("init", gpu("c0", 10, 4), init=[gpu("init", 20, 2)], at=3),
        a_pod("side", gpu("c0", 10, 8), init=[sidecar("side", 5, 1)], at=4),
        a_pod("card", gpu("c0", 100, 32), at=5),
    ]


# --- tests ------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.usefixtures("hasty")
def test_order_takes_over_and_says_so(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(
        Diary, "podresources_unavailable", lambda _diary, reason: reasons.append(reason)
    )
    pods = some_pods()[2:]
    uids = [uid_of(each) for each in pods]
    with blind(way, cards=4) as (node, _):
        for each in pods:
            node.admit([each])
        assert_right(node, *uids)
        assert_sound(node)
        counts = node.diary.counts
        assert {key for key in counts if key.startswith("prefer")} == {"prefer by order"}
        for uid in uids:
            assert {*evidence_of(node, uid)} == {Evidence.RECORD}  # since its start
        starts = len(node.kubelet.trace.rpcs("PreStartContainer"))
        assert counts["prestart by record"] == starts
        assert len(reasons) >= counts["prefer by order"]
        late = "PodResources: DEADLINE_EXCEEDED"  # on a busy machine, within so short a time
        known = [each for each in reasons if each.startswith(late) or each.startswith(WAYS[way])]  # noqa: PIE810 -- one may be several
        assert known == reasons


def test_a_pod_that_nobody_can_know_is_refused_and_the_next_one_is_fine() -> None:
    """Neither the API nor the kubelet's record tells of it."""
    with a_node() as node, denied(node):
        node.add_static(a_pod("static", uid="uid-static"))
        wait_until_admitted(node)
        assert said_to(node, "uid-static") == (
            "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc "
            "failed with err: rpc error: code = FailedPrecondition desc = gpu-turnstile: "
            f"{asked_first(node)}, but no waiting container asks for that; waiting: none, "
            "which is unexpected"
        )
        node.admit([a_pod("next")])
        assert_right(node, "uid-next")
        assert_sound(node)


def asked_first(node: Node) -> str:
    """What the kubelet came with first, its dice decide: cores or memory."""
    resource = node.kubelet.trace.rpcs("GetPreferredAllocation")[0].resource
    return {"core": "10 places of core", "memory": "4 places of memory"}[
        resource.rpartition("-")[2]
    ] + " were asked for"


def test_without_the_checkpoint_everything_starts_unproven() -> None:
    """The folder of the kubelet is not mounted: one metric and one log line tell."""
    pods = some_pods()
    with a_node(cards=4, checkpoint=False) as node:
        for each in pods:
            node.admit([each])
        assert_right(node, *map(uid_of, pods))
        assert node.double_grants() == 0
        assert node.differences() == []
        starts = len(node.kubelet.trace.rpcs("PreStartContainer"))
        counts = node.diary.counts
        assert counts["unproven"] == starts
        assert counts["corrected"] == 0
