"""Samples joined to containers, and containers that use more than they hold."""

from collections.abc import Mapping

import pytest

from agent.cards.card_use import CardUse
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings, are_whole, make_key
from agent.usage.join import MeasuredUse, OveruseWatch, ProcessOwner, join
from contract.inventory import Amounts
from tests.agent.builders import device_table, pod_id

MIB = 1 << 20
HALF, BLOCK = Amounts(50, 8), 256 * MIB
TABLE = device_table(2, blocks=16)


def holder(name: str, cards: Mapping[str, Amounts], core_limit: int | None = None) -> Holding:
    """A container ``main`` of a pod whose UID is its name."""
    ref = ContainerRef(pod_id(name, name), "main")
    return Holding(ref, make_key(name), cards, are_whole(cards), core_limit, name)


def holding_all(*holders: Holding) -> NodeHoldings:
    return NodeHoldings.of(holders, TABLE.inventory.cards, BLOCK)


def owner(name: str) -> ProcessOwner:
    return ProcessOwner(name, "main")


A, B = holder("a", {"GPU-0": HALF}), holder("b", {"GPU-1": Amounts(100, 8)})
OWNERS = {1: owner("a"), 2: owner("a"), 3: owner("b"), 4: ProcessOwner("a", "plain")}


@pytest.mark.parametrize(
    ("cards", "of_a", "of_b"),
    [
        pytest.param(
            {"GPU-0": CardUse(9, 9, {1: 20, 2: 30, 4: 5, 9: 5}, {1: 1, 2: 2, 4: 4, 9: 8})},
            {"GPU-0": MeasuredUse(50, 3)},
            {},
            id="all processes of the container, and no others",
        ),
        pytest.param(
            {"GPU-0": CardUse(9, 9, {1: 80, 2: 80}, {1: 1})},
            {"GPU-0": MeasuredUse(100, 1)},
            {},
            id="no more than the card",
        ),
        pytest.param(
            {"GPU-0": CardUse(9, 9, None, {1: 1}), "GPU-1": CardUse(9, 9, {3: 7}, None)},
            {"GPU-0": MeasuredUse(None, 1)},
            {"GPU-1": MeasuredUse(7, None)},
            id="values that the driver lacks",
        ),
        pytest.param(
            {"GPU-0": CardUse(9, 9, {}, {}), "GPU-1": CardUse(9, 9, {1: 40}, {1: 4})},
            {"GPU-0": MeasuredUse(0, 0), "GPU-1": MeasuredUse(40, 4)},
            {"GPU-1": MeasuredUse(0, 0)},
            id="on a card that it does not hold",
        ),
    ],
)
def test_use_is_that_of_the_holders(
    cards: dict[str, CardUse], of_a: dict[str, MeasuredUse], of_b: dict[str, MeasuredUse]
) -> None:
    unknown = holder("", {"GPU-0": HALF})  # its UID is not known yet
    assert join(cards, OWNERS, holding_all(A, B, unknown)) == {A.ref: of_a, B.ref: of_b}


# --- more than a share ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "used", "text"),
    [
        (A, {"GPU-0": MeasuredUse(60, 2560 * MIB)}, ""),
        (A, {"GPU-0": MeasuredUse(61, 0)}, "uses 61 cores of GPU-0 and holds 50"),
        (A, {"GPU-0": MeasuredUse(0, 3000 * MIB)}, "uses 3000 MiB of GPU-0 and holds 2048"),
        (
            A,
            {"GPU-0": MeasuredUse(0, 0), "GPU-1": MeasuredUse(30, 600 * MIB)},
            "uses 30 cores of GPU-1 and holds 0; uses 600 MiB of GPU-1 and holds 0",
        ),
        (holder("a", {"GPU-0": HALF}, core_limit=80), {"GPU-0": MeasuredUse(90, 0)}, ""),
        (holder("a", {"GPU-0": HALF}, core_limit=20), {"GPU-0": MeasuredUse(60, 0)}, ""),
    ],
)
def test_more_than_a_share_is_more_than_its_tolerance(
    of: Holding, used: dict[str, MeasuredUse], text: str
) -> None:
    watch = OveruseWatch()
    findings = [watch.find(at, holding_all(of), {of.ref: used}) for at in (0, 15, 30)]
    assert [[each.text for each in one] for one in findings] == [[], [], [text] if text else []]


def test_only_lasting_overuse_is_reported_and_once() -> None:
    watch, much = OveruseWatch(), {A.ref: {"GPU-0": MeasuredUse(90, 0)}}

    def has_finding(
        at: float, use: Mapping[ContainerRef, Mapping[str, MeasuredUse]] = much
    ) -> bool:
        return [each.ref for each in watch.find(at, holding_all(A), use)] == [A.ref]

    assert not any(has_finding(at) for at in (0, 29))
    assert not has_finding(30, {})  # no use: it begins again
    assert not any(has_finding(at) for at in (31, 60))
    seldom = OveruseWatch()  # too few measurements
    assert [seldom.find(at, holding_all(A), much) for at in (0, 60)] == [[], []]
    assert has_finding(61)
    assert not any(has_finding(at) for at in (70, 200))
    watch.find(201, holding_all(), {})  # the container has ended; one with its name starts again
    assert not has_finding(202)
    watch.interrupt()
    assert not any(has_finding(at) for at in (240, 260))
    assert has_finding(270)
