"""Allocation: whole cards, shares of one card, and slots that become free."""

import re

import pytest

from agent.allocator.slots import Slot
from contract.demand import Demand
from contract.resource import Resource
from tests.e2e.ground import wait
from tests.e2e.manifests import BLOCKS, CARDS
from tests.e2e.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_whole_cards_are_whole_and_seen_in_order(stage: Stage) -> None:
    pods = stage.run(
        stage.make.single("share", 5, 4),
        stage.make.single("one", 100),
        stage.make.single("two", 200, 10),
        stage.make.single("three", 300, BLOCKS * 3),
    )
    seen = {each.pod: each for each in stage.audit("whole cards", pods)}
    cards = [card for each in seen.values() for card in each.visible or ()]
    assert len(cards) == len(set(cards)) == 7
    for name in ("one", "two", "three"):
        observe = list(seen[name].visible or ())
        assert observe == sorted(observe)
        assert all(_count_slots(seen[name].held[Resource.CORE], card) == 100 for card in observe)
    blocks = seen["two"].held[Resource.MEMORY]
    assert [_count_slots(blocks, card) for card in seen["two"].visible or ()] == [5, 5]


def test_a_freed_slot_is_allocated_again(stage: Stage) -> None:
    pods = stage.run(*(stage.make.single(f"whole-{number}", 100) for number in range(CARDS)))
    seen = stage.audit("a full node", pods)
    assert {each.visible for each in seen} == {(card,) for card in stage.cards}
    (freed,) = (each.visible for each in seen if each.pod == "whole-4")
    stage.cluster.delete("whole-4")
    again = stage.run(stage.make.single("again", 40, BLOCKS))
    (seen_again,) = stage.audit("the freed card", again)
    assert seen_again.visible == freed


def test_the_last_free_slots_are_allocated_with_or_without_a_preferred_call(stage: Stage) -> None:
    """A kubelet may leave the preferred call out when there is nothing to choose (fact K2)."""
    stage.run(*(stage.make.single(f"whole-{number}", 100) for number in range(CARDS - 1)))
    stage.agent.mark()
    pods = stage.run(stage.make.single("last", 100, BLOCKS))
    (seen,) = stage.audit("exactly what is left", pods)
    assert len(seen.visible or ()) == 1
    preferred = {each["resource"] for each in stage.agent.events("prefer")}
    evidence = {each["resource"]: each["evidence"] for each in stage.agent.events("allocate")}
    stage.report(f"exactly what is left: preferred calls for {sorted(preferred)}")
    assert evidence == {
        each.value: "ticket" if each in preferred else "witness" for each in Resource
    }


def test_a_share_that_only_fits_over_two_cards_is_refused_with_a_reason(stage: Stage) -> None:
    """The scheduler counts slots per node: it binds pods that fit on no card."""
    stage.run(
        *(stage.make.single(f"whole-{number}", 100) for number in range(CARDS - 2)),
        stage.make.single("most-0", 60, 4),
        stage.make.single("most-1", 60, 4),
    )
    pods = stage.run(stage.make.single("split", 80, 4))
    message = stage.refused(pods)["split"]
    stage.wait_for_event("split", "GPURefused")
    stage.report(f"a share over two cards: {message}")
    assert message.startswith("Pod was rejected: Allocate failed due to ")
    assert re.search(
        r"code = FailedPrecondition desc = gpu-turnstile: "
        r"(no card fits 80 cores and 4 memory blocks: "
        r"|a share of 80 cores is split over cards: 40 on )",
        message,
    )
    fits = stage.run(stage.make.single("fits", 40, 4))
    stage.audit("what fits after a refusal", fits)


def test_slots_of_an_init_container_are_reused(stage: Stage) -> None:
    """Fact K7: what an ordinary init container had goes to the containers after it."""
    make = stage.make
    small, large = make.container("main", 10, 4), make.container("main", 30, 12)
    pods = stage.run(
        make.pod(
            "more-before", [small], initContainers=[make.container("init", 30, 12, run="true")]
        ),
        make.pod(
            "less-before", [large], initContainers=[make.container("init", 10, 4, run="true")]
        ),
        make.pod(
            "with-sidecar",
            [small],
            initContainers=[
                make.container("first", 10, 4, run="true"),
                make.container("sidecar", 5, 4, restartPolicy="Always"),
                make.container("second", 20, 8, run="true"),
            ],
        ),
    )
    assert stage.refused(pods) == {}
    assert len(stage.audit("init containers and sidecars", pods)) == 8


def _count_slots(ids: frozenset[str], card: str) -> int:
    return sum(Slot.parse(each).card == card for each in ids)


def test_a_limit_of_0_requests_nothing(stage: Stage) -> None:
    """The kubelet makes no call for it."""
    make = stage.make
    zeros = make.container("zeros", 0, 0)
    pods = stage.run(
        make.pod("nothing", [zeros]), make.pod("some", [zeros, make.container("main", 5, 4)])
    )
    assert {each["status"]["phase"] for each in pods.values()} == {"Running"}
    (seen,) = stage.audit("limits of 0", {"some": pods["some"]})
    assert (seen.container.name, seen.container.demand) == ("main", Demand(5, 4))


def test_a_cordoned_card_gets_no_new_container_and_those_that_have_it_stay(stage: Stage) -> None:
    key, cluster = stage.names.gpu_cordoned, stage.cluster
    before = stage.run(stage.make.single("holder", 5, 4))
    (holder,) = stage.audit("before the cordon", before)
    assert holder.visible is not None
    cluster.annotate_node(stage.node, key, holder.visible[0])
    try:
        wait("its slots are withdrawn", lambda: stage.offered() == (CARDS - 1) * 100)
        after = stage.run(stage.make.single("next", 5, 4))
        (following,) = stage.audit("a pod after the cordon", after)
        assert following.visible != holder.visible
        stage.restart_kubelet()
        wait("the kubelet is back", lambda: stage.offered() == (CARDS - 1) * 100)
        there = cluster.pods()["holder"]["status"]
        assert there["phase"] == "Running"
        assert [each["restartCount"] for each in there["containerStatuses"]] == [0]
    finally:
        cluster.annotate_node(stage.node, key, None)
    wait("its slots are offered again", lambda: stage.offered() == CARDS * 100)
