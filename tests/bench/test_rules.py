"""The rules of other projects, on bursts of a few pods."""

import pytest

from bench.rules import Candidate, Request, Rule, gpu_manager, gpushare, volcano
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource

CORE, MEMORY = Resource.CORE, Resource.MEMORY


def pod(name: str, bound: int, *demands: tuple[int, int]) -> Candidate:
    containers = tuple(
        ContainerDemand(f"c{index}", ContainerKind.MAIN, index, Demand(*demand))
        for index, demand in enumerate(demands)
    )
    return Candidate(name, name, bound, 0, containers)


def calls(resource: Resource, *sizes: int, at: int = 100) -> list[Request]:
    return [Request(resource, size, at, "?", "c0") for size in sizes]


ANSWERS: dict[str, tuple[Rule, list[Candidate], list[Request], list[str | None]]] = {
    "gpu-manager names the oldest pod of equal cores": (
        gpu_manager,
        [pod("b", 2, (10, 4)), pod("a", 1, (5, 4)), pod("c", 3, (10, 8))],
        calls(CORE, 10, 10, 5),
        ["b/c0", "c/c0", "a/c0"],
    ),
    "gpu-manager does not know a pod before it is bound": (
        gpu_manager,
        [pod("late", 50, (10, 4))],
        calls(CORE, 10, at=49) + calls(CORE, 10, at=50),
        [None, "late/c0"],
    ),
    "gpu-manager insists on the unfinished pod: one mistake shifts all that follow (K6)": (
        gpu_manager,
        [pod("two", 1, (10, 4), (5, 4)), pod("one", 2, (10, 4))],
        calls(CORE, 10, 10, 5, 10),
        ["two/c0", None, "two/c1", "one/c0"],
    ),
    "gpushare compares the call with the total of a pod": (
        gpushare,
        [pod("two", 1, (1, 4), (1, 4)), pod("four", 2, (1, 4)), pod("eight", 3, (1, 8))],
        calls(MEMORY, 4, 8, 8),
        ["four", "two", "eight"],
    ),
    "volcano counts a pod as assigned after its first container": (
        volcano,
        [pod("two", 1, (1, 4), (1, 8)), pod("next", 2, (1, 8))],
        calls(MEMORY, 4, 8, 8),
        ["two", "next", None],
    ),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_rule_names_whom_its_project_would(what: str) -> None:
    rule, pods, requests, expected = ANSWERS[what]
    for told in (pods, pods[::-1]):  # the order in which pods are told is none
        found = [
            each and (f"{each.pod}/{each.container}" if each.container else each.pod)
            for each in rule(told, requests)
        ]
        assert found == expected
