"""Situation 15: the kubelet offers a part of the free devices, or exactly the requested number.

A Topology Manager policy other than ``none`` (fact K23) makes the device manager offer the devices
of some NUMA nodes only; if they are exactly enough, it allocates them without a preferred call.
Cards 0 and 1 are on node 0, cards 2 and 3 on node 1.
"""

import pytest

from placement.scoring import Policy
from tests.situations.build import NAMES, Json, a_node, a_pod, gpu, sidecar, uid_of

CARDS = [f"GPU-{n}{n}{n}{n}0000-5eed-4a2d-8c1f-00000000000{n}" for n in range(4)]
NEAR, FAR = frozenset(CARDS[:2]), frozenset(CARDS[2:])

every_seed = pytest.mark.parametrize("seed", [1, 2])  # cores or memory first


def fillers() -> list[Json]:
    """Cards 0 and 1, on NUMA node 0, have 40 free cores each; of node 1 one card is free."""
    sizes = {"near-1": (60, 4), "near-2": (60, 4), "far-1": (95, 4)}
    return [a_pod(name, gpu("c0", *size), at=n) for n, (name, size) in enumerate(sizes.items())]


def hint(pod_uid: str, container: str) -> set[int] | None:
    """Return the NUMA nodes for a pod by its name."""
    return {"uid-near": {0}, "uid-far": {1}}.get(pod_uid.rpartition("-")[0])


@every_seed
def test_a_pod_that_fits_runs_if_numa_nodes_are_hidden_from_the_kubelet(seed: int) -> None:
    with a_node(seed=seed, cards=4, kubelet={"numa_hint": hint}) as node:
        node.admit(fillers())
        node.admit([a_pod("near-p", gpu("c0", 50, 4))])
        assert node.refusal_message("uid-near-p") == ""
        node.assert_right("uid-near-p")
        node.assert_sound()


@every_seed
def test_with_numa_nodes_reported_the_kubelet_offers_a_node_where_no_card_fits(seed: int) -> None:
    """It counts 80 devices on node 0, which are of two cards."""
    with a_node(seed=seed, cards=4, numa=True, kubelet={"numa_hint": hint}) as node:
        node.admit(fillers())
        assert len(node.cards_of("uid-near-1") | node.cards_of("uid-near-2")) == 2
        node.admit([a_pod("near-p", gpu("c0", 50, 4))])
        assert "no card fits 50 cores and 4 memory blocks" in node.refusal_message("uid-near-p")
        node.assert_sound()


def test_whole_cards_stay_on_one_numa_node_if_numa_is_reported() -> None:
    with a_node(cards=4, numa=True, kubelet={"numa_hint": hint}) as node:
        node.admit([a_pod("near-p", gpu("c0", 200, 4)), a_pod("far-q", gpu("c0", 200, 4))])
        node.assert_right("uid-near-p", "uid-far-q")
        node.assert_sound()


def test_cards_are_of_one_numa_node_if_required_or_the_pod_is_refused() -> None:
    """On a node whose kubelet does not know NUMA nodes; each has two of the four cards."""
    wish = {NAMES.gpu_link: "numa"}
    with a_node(cards=4) as node:
        node.admit([a_pod("share", gpu("c0", 30, 4))])
        node.admit([a_pod("three", gpu("c0", 300), annotations=wish, at=1)])
        why = "no 3 of 3 fitting cards are on one NUMA node (gpu-link: numa)"
        assert why in node.refusal_message("uid-three")
        node.admit([a_pod("pair", gpu("c0", 200), annotations=wish, at=2)])
        node.assert_right("uid-share", "uid-pair")
        assert {int(each[4]) for each in node.cards_of("uid-pair")} == {2, 3}
        node.assert_sound()


@every_seed
def test_a_burst_follows_hints_and_the_last_slots_come_without_a_preferred_call(
    seed: int,
) -> None:
    pods = [a_pod(f"far-{n}", gpu("c0", 20, 2 + n % 3), init=[sidecar()], at=n) for n in range(3)]
    pods += [a_pod(f"near-{n}", gpu("c0", 10, 4), gpu("c1", 10, 4), at=n) for n in range(3)]
    with a_node(seed=seed, cards=4, kubelet={"numa_hint": hint}, numa=True) as node:
        node.admit([a_pod("far-card", gpu("c0", 100, 32))])
        node.bind(*pods)
        node.settle()
        for number, each in enumerate(pods):
            assert node.cards_of(uid_of(each)) < (FAR if number < 3 else NEAR)
        node.admit([a_pod("far-last", gpu("c0", 10, 11))])
        assert node.preferred_for("uid-far-last") == []
        node.assert_right("uid-far-card", "uid-far-last", *map(uid_of, pods))
        node.assert_no_guess("uid-far-last")
        node.assert_sound()


@every_seed
def test_an_offer_that_is_split_over_cards_is_refused_with_the_split(seed: int) -> None:
    """Each card of the node has 30 free cores, 60 are requested."""
    hints = {"numa_hint": hint}
    with a_node(seed=seed, cards=4, kubelet=hints, numa=True, policy=Policy.SPREAD) as node:
        node.admit([a_pod("far-a", gpu("c0", 70, 4))])
        node.admit([a_pod("far-b", gpu("c0", 70, 4))])
        assert node.cards_of("uid-far-a") | node.cards_of("uid-far-b") == FAR
        node.admit([a_pod("far-split", gpu("c0", 60, 4))])
        message = node.refusal_message("uid-far-split")
        if node.preferred_for("uid-far-split"):  # its memory came first
            assert message.endswith("2 cards: 30 of 60 cores free, which is unexpected")
        else:
            assert message == (
                "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition "
                "desc = gpu-turnstile: a share of 60 cores is split over cards: "
                f"30 on {CARDS[2]}, 30 on {CARDS[3]}, which is unexpected"
            )
        node.admit([a_pod("next", gpu("c0", 60, 4))])
        assert node.cards_of("uid-next") <= NEAR
        node.assert_right("uid-far-a", "uid-far-b", "uid-next")
        node.assert_sound()
