"""The audit itself must be able to say no; runs with the unit tests."""

from dataclasses import replace

import pytest

from agent.enforcement.vcuda.config import VcudaConfig
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource
from tests.e2e.audit import Seen, findings

LIMITS = VcudaConfig("u", "c", "", memory=256 << 20, utilization=2)
RIGHT = Seen(
    pod="p",
    container=ContainerDemand("c", ContainerKind.MAIN, 0, Demand(2, 1)),
    held={Resource.CORE: frozenset({"A::0", "A::1"}), Resource.MEMORY: frozenset({"A::7"})},
    recorded=Allocation(("A",), 2, 1, Evidence.WITNESS),
    visible=("A",),
    uid="u",
    limits=LIMITS,
)
INIT = replace(
    RIGHT,
    container=replace(RIGHT.container, name="i", kind=ContainerKind.INIT),
    held={},
    limits=replace(LIMITS, container_name="i"),
)


def test_what_fits_together_gives_no_findings() -> None:
    assert findings([RIGHT, INIT]) == []


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (replace(RIGHT, visible=None), ["p c: has not said which cards it sees"]),
        (replace(RIGHT, limits=None), ["p c: found None"]),
        *(
            (replace(RIGHT, limits=found), [f"p c: found {found}"])
            for found in (
                replace(LIMITS, pod_uid="v"),
                replace(LIMITS, container_name="d"),
                replace(LIMITS, memory=512 << 20),
                replace(LIMITS, utilization=3),
                replace(LIMITS, enable=False),
            )
        ),
        (replace(RIGHT, recorded=None), ["p c: is not recorded"]),
        (replace(INIT, recorded=None), ["p i: is not recorded"]),
        (
            replace(RIGHT, recorded=Allocation(("A",), 2, 2, Evidence.WITNESS)),
            ["p c: asked for 2 cores and 1 blocks, 2 cores and 2 blocks are recorded"],
        ),
        (
            replace(RIGHT, visible=("B",)),
            ["p c: sees ('B',), the kubelet gave it ['A']", "p c: sees ('B',), recorded ('A',)"],
        ),
        (
            replace(RIGHT, held={**RIGHT.held, Resource.MEMORY: frozenset()}),
            [
                "p c: asked for 1 of memory, holds 0",
                "p c: has its cores on ['A'] and its memory on []",
            ],
        ),
    ],
)
def test_each_contradiction_is_found(seen: Seen, expected: list[str]) -> None:
    assert findings([seen]) == expected


def test_where_nothing_enforces_limits_none_are_found() -> None:
    assert findings([replace(RIGHT, limits=None)], enforced=False) == []
    assert findings([RIGHT], enforced=False) == [f"p c: found {LIMITS}"]


def test_a_place_held_twice_is_found() -> None:
    twin = replace(RIGHT, pod="q")

    assert findings([RIGHT, twin]) == [
        "A::0 of core is held by p c and q c",
        "A::1 of core is held by p c and q c",
        "A::7 of memory is held by p c and q c",
    ]


def test_an_init_container_served_before_a_crash_need_not_be_recorded() -> None:
    assert findings([replace(INIT, recorded=None)], init_recorded=False) == []
    assert findings([replace(RIGHT, recorded=None)], init_recorded=False) != []


@pytest.mark.parametrize("demand", [Demand(100, 0), Demand(100, 4), Demand(300, 4)])
def test_whole_cards_are_not_limited(demand: Demand) -> None:
    limits = replace(LIMITS, memory=0, utilization=100, enable=False)
    seen = replace(RIGHT, container=replace(RIGHT.container, demand=demand), limits=limits)
    assert not [each for each in findings([seen]) if "found" in each]
