"""Situation 10: the kubelet offers a part of what is free, or exactly what is asked for.

A topology manager's hint makes the device manager offer the places of some NUMA nodes only; with
no more of them than are asked for, it asks for no preference at all and allocates them.
Cards 0 and 1 are on node 0, cards 2 and 3 on node 1.
"""

from collections.abc import Collection
from typing import Any

import pytest

from contract.allocation import Evidence
from placement.scoring import Policy
from simulator.node.node import Node
from tests.agent.fakes import eventually
from tests.situations.build import (
    NAMES,
    a_node,
    a_pod,
    assert_right,
    assert_sound,
    cards_of,
    evidence_of,
    gpu,
    places_of,
    preferred_for,
    said_to,
    sidecar,
    uid_of,
)

CARDS = [f"GPU-{n}{n}{n}{n}0000-5eed-4a2d-8c1f-00000000000{n}" for n in range(4)]
NEAR, FAR = frozenset(CARDS[:2]), frozenset(CARDS[2:])
ENDS = "which is unexpected"
REFUSED = (
    "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = "
    "gpu-turnstile: "
)


class Hints:
    """A topology manager: which NUMA nodes a container is to stay on, by the name of its pod."""

    def __init__(self, **by_pod: Collection[int]) -> None:
        self._by_uid = {f"uid-{name}": nodes for name, nodes in by_pod.items()}

    def __call__(self, pod_uid: str, container: str) -> Collection[int] | None:
        return self._by_uid.get(pod_uid)


def hinted_node(seed: int = 0, *, hints: Hints, **options: Any) -> Node:
    """A node of four cards on two NUMA nodes, which the kubelet is told."""
    return a_node(seed=seed, cards=4, kubelet={"numa_hint": hints}, numa=True, **options)


def fill(node: Node, **shares: tuple[int, int]) -> None:
    """Put pods of so many cores and blocks on the node, one after the other."""
    for name, (cores, memory) in shares.items():
        node.admit([a_pod(name, gpu("c0", cores, memory))])


def end(node: Node, uid: str) -> None:
    """Delete a pod, and wait until the kubelet has its places back."""
    node.delete(uid)
    eventually(lambda: not places_of(node, uid), f"{uid} has ended")
    node.sweep()


every_seed = pytest.mark.parametrize("seed", [1, 2])  # cores or memory asked for first


@pytest.mark.parametrize(("seed", "policy"), list(enumerate(Policy)))
def test_a_share_goes_where_the_hint_wants_it_and_the_next_pod_anywhere(
    seed: int, policy: Policy
) -> None:
    with hinted_node(seed, hints=Hints(far={1}), policy=policy) as node:
        fill(node, before=(30, 8))
        node.admit([a_pod("far", gpu("c0", 30, 8), gpu("c1", 60, 8), init=[sidecar()])])
        assert {each.available for each in preferred_for(node, "uid-far")} <= {
            *range(30, 201)  # never more than the two cards of node 1 have
        }
        for container in ("sidecar", "c0", "c1"):
            assert cards_of(node, "uid-far", container) <= FAR
        fill(node, after=(30, 8))
        assert cards_of(node, "uid-after") <= NEAR
        assert_right(node, "uid-before", "uid-far", "uid-after")
        assert_sound(node)


@every_seed
def test_whole_cards_go_where_the_hint_wants_them(seed: int) -> None:
    with hinted_node(seed, hints=Hints(one={1}, two={1}, wide={0, 1})) as node:
        node.admit([a_pod("one", gpu("c0", 100, 16))])
        assert cards_of(node, "uid-one") < FAR
        node.admit([a_pod("two", gpu("c0", 200, 40))])  # one card is left there
        node.admit([a_pod("wide", gpu("c0", 300, 60))])
        assert cards_of(node, "uid-wide") == {*CARDS} - cards_of(node, "uid-one")
        assert said_to(node, "uid-two").endswith(ENDS)
        assert_right(node, "uid-one", "uid-wide")
        assert_sound(node)


@every_seed
def test_all_that_is_aligned_is_allocated_without_asking_and_told_by_the_record(seed: int) -> None:
    """Exactly one whole card is left on the node: no preferred call for its cores."""
    with hinted_node(seed, hints=Hints(a={1}, b={1})) as node:
        node.admit([a_pod("a", gpu("c0", 100, 32))])
        node.admit([a_pod("b", gpu("c0", 100, 32))])
        assert preferred_for(node, "uid-b") == []
        assert cards_of(node, "uid-a") | cards_of(node, "uid-b") == FAR
        assert {*evidence_of(node, "uid-b")} == {Evidence.WITNESS}
        node.admit([a_pod("next")])
        assert_right(node, "uid-a", "uid-b", "uid-next")
        assert_sound(node)


@every_seed
def test_all_that_is_aligned_but_split_over_cards_is_refused_with_the_split(seed: int) -> None:
    """30 cores are left on each card of the node, 60 are asked for: no card has them."""
    fillers = {"a": (70, 4), "b": (70, 4)}
    hints = Hints(a={1}, b={1}, split={1})
    with hinted_node(seed, hints=hints, policy=Policy.SPREAD) as node:
        fill(node, **fillers)
        assert cards_of(node, "uid-a") | cards_of(node, "uid-b") == FAR
        node.admit([a_pod("split", gpu("c0", 60, 4))])
        if preferred_for(node, "uid-split"):  # its memory was asked for first
            assert said_to(node, "uid-split").endswith(f"2 cards: 30 of 60 cores free, {ENDS}")
        else:
            assert said_to(node, "uid-split") == (
                f"{REFUSED}a share of 60 cores is split over cards: "
                f"30 on {CARDS[2]}, 30 on {CARDS[3]}, {ENDS}"
            )
        node.admit([a_pod("next", gpu("c0", 60, 4))])
        assert cards_of(node, "uid-next") <= NEAR
        assert_right(node, "uid-a", "uid-b", "uid-next")
        assert_sound(node)


@every_seed
def test_an_exact_fit_on_one_card_is_right_whichever_resource_comes_first(seed: int) -> None:
    """The last of a card: both resources fit exactly, neither is asked about."""
    kubelet = {"preferred_when_exact": False}
    with a_node(seed=seed, cards=1, kubelet=kubelet) as node:
        fill(node, a=(60, 24))
        fill(node, last=(40, 8))
        assert preferred_for(node, "uid-last") == []
        assert_right(node, "uid-a", "uid-last")
        assert {*evidence_of(node, "uid-last")} == {Evidence.WITNESS}
        end(node, "uid-a")
        fill(node, next=(60, 24))
        assert_right(node, "uid-last", "uid-next")
        assert_sound(node)


def test_a_burst_with_a_hint_for_every_pod_is_named_rightly() -> None:
    """A topology manager that spreads pods over the nodes: many subsets, many sizes."""

    def hint(pod_uid: str, container: str) -> Collection[int]:
        return {int(pod_uid[-1]) % 2}

    pods = [
        a_pod(f"p{number:02}", gpu("c0", 10, 2 + number % 3), gpu("c1", 10, 4), at=number)
        for number in range(14)
    ]
    with a_node(cards=4, kubelet={"numa_hint": hint}, numa=True) as node:
        node.bind(*pods)
        node.settle()
        for each in pods:
            wanted = FAR if int(uid_of(each)[-1]) % 2 else NEAR
            assert cards_of(node, uid_of(each)) <= wanted
        assert_right(node, *map(uid_of, pods))
        assert_sound(node)
        resources = {each.resource for each in node.kubelet.trace.rpcs("Allocate")}
        assert resources == {NAMES.core, NAMES.memory}
