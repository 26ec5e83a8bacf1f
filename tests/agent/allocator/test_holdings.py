"""What containers hold of cards, counted from the ledger."""

from dataclasses import replace

import pytest

from agent.allocator.allocator import Allocator
from agent.allocator.holdings import CardRoom, HeldShare, Holdings
from agent.allocator.model.answer import Answer
from agent.allocator.model.pod_view import PodView
from contract.resource import Resource
from tests.agent.builders import BLOCK, CORE, INIT, MEMORY, container, device_table, hold, ids, view
from tests.agent.fakes import FakeAnnotationWriter, FakeDecisionLog, FakePods, FakeRecord

_Held = tuple[str, Resource, frozenset[str]]


def _holdings(*pods: tuple[PodView, tuple[_Held, ...]]) -> Holdings:
    """Count on two cards of ten blocks what these containers hold."""
    source = FakePods()
    allocator = Allocator(
        table=device_table(),
        pods=source,
        record=FakeRecord(),
        writer=FakeAnnotationWriter(),
        decision_log=FakeDecisionLog(),
        answer=lambda _grant: Answer(),
    )
    for pod, held in pods:
        source.add(pod)
        for name, resource, device_ids in held:
            kind = pod.demand.of(name)
            assert kind is not None
            hold(allocator.state.ledger, pod.id, name, resource, device_ids, kind=kind.kind)
    return allocator.holdings()


def _shares(found: Holdings) -> dict[str, dict[str, HeldShare]]:
    return {
        f"{each.ref.pod.name}/{each.ref.container}": dict(each.shares) for each in found.holders
    }


SHARE = ("c0", CORE, ids("GPU-0", range(30))), ("c0", MEMORY, ids("GPU-0", range(4)))
WHOLE = (("c0", CORE, ids("GPU-1", range(100))),)


def test_shares_and_whole_cards_are_counted_by_container_and_by_card() -> None:
    limited = view("a", container("c0", 30, 4))
    limited = replace(limited, runtime_uid="static", wishes=replace(limited.wishes, core_limit=60))
    found = _holdings((limited, SHARE), (view("b", container("c0", 100, 0)), WHOLE))
    assert _shares(found) == {
        "a/c0": {"GPU-0": HeldShare(30, 4 * BLOCK)},
        # Asked for without memory, a whole card is its holder's alone.
        "b/c0": {"GPU-1": HeldShare(100, 10 * BLOCK)},
    }
    assert found.cards == {
        "GPU-0": CardRoom(30, 70, 4 * BLOCK, 6 * BLOCK),
        "GPU-1": CardRoom(100, 0, 10 * BLOCK, 0),
    }
    one, other = found.holders
    assert (one.runtime_uid, one.core_limit) == ("static", 60)
    assert (other.runtime_uid, other.core_limit) == ("u-b", None)


def test_a_whole_card_with_a_memory_request_holds_that_much() -> None:
    blocks = ("c0", MEMORY, ids("GPU-1", range(3)))
    found = _holdings((view("b", container("c0", 100, 3)), (*WHOLE, blocks)))
    assert _shares(found) == {"b/c0": {"GPU-1": HeldShare(100, 3 * BLOCK)}}
    assert found.cards["GPU-1"] == CardRoom(100, 0, 3 * BLOCK, 7 * BLOCK)


@pytest.mark.parametrize(("running", "shown"), [(False, {"a/i", "a/c0"}), (True, {"a/c0"})])
def test_an_init_container_is_shown_until_its_pod_runs(running: bool, shown: set[str]) -> None:
    """What it took the pod keeps, by its later containers (fact K7)."""
    pod = replace(
        view("a", container("i", 30, 4, kind=INIT), container("c0", 30, 4)), running=running
    )
    init = tuple(("i", resource, device_ids) for _, resource, device_ids in SHARE)
    found = _holdings((pod, (*init, *SHARE)))
    assert set(_shares(found)) == shown
    assert found.cards["GPU-0"] == CardRoom(30, 70, 4 * BLOCK, 6 * BLOCK)


def test_what_is_held_of_a_card_that_is_no_more_is_left_out() -> None:
    found = _holdings((view("a", container("c0", 30, 4)), (("c0", CORE, ids("GPU-9", (0,))),)))
    assert _shares(found) == {"a/c0": {}}
