"""The rules of other projects, on bursts of a few pods."""

import pytest

from bench.rules import (
    Candidate,
    Named,
    Request,
    Rule,
    by_bind_time,
    by_creation_time,
    gpu_manager,
    gpushare,
    judge,
    oldest_first,
    volcano,
)
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.resource import Resource
from simulator.node.judge import Verdict

CORE, MEMORY = Resource.CORE, Resource.MEMORY


def pod(name: str, bound: int, *demands: tuple[int, int], created: int = 0) -> Candidate:
    containers = tuple(
        ContainerDemand(f"c{index}", ContainerKind.MAIN, index, Demand(*demand))
        for index, demand in enumerate(demands)
    )
    return Candidate(name, name, bound, created, containers)


def call(size: int, *, whose: str = "?", at: int = 100, resource: Resource = CORE) -> Request:
    return Request(resource, size, at, whose, "c0")


def cores(*sizes: int) -> list[Request]:
    return [call(size) for size in sizes]


def memory(*sizes: int) -> list[Request]:
    return [call(size, resource=MEMORY) for size in sizes]


TWO_AND_ONE = [pod("two", 1, (10, 4), (5, 4)), pod("one", 2, (10, 4))]
OF_ONE_SECOND = [pod("b", 1, (10, 4), created=7), pod("a", 2, (10, 4), created=7)]

ANSWERS: dict[str, tuple[Rule, list[Candidate], list[Request], list[str | None]]] = {
    "gpu-manager names the oldest pod of equal cores": (
        gpu_manager(by_bind_time),
        [pod("b", 2, (10, 4)), pod("a", 1, (5, 4)), pod("c", 3, (10, 8))],
        cores(10, 10, 5),
        ["b/c0", "c/c0", "a/c0"],
    ),
    "gpu-manager does not know a pod before it is bound": (
        gpu_manager(by_bind_time),
        [pod("late", 50, (10, 4))],
        [call(10, at=49), call(10, at=50)],
        [None, "late/c0"],
    ),
    "gpu-manager insists on the unfinished pod: one mistake shifts all that follow (K6)": (
        gpu_manager(by_bind_time),
        TWO_AND_ONE,
        cores(10, 10, 5, 10),
        ["two/c0", None, "two/c1", "one/c0"],
    ),
    "oldest first goes on to the next pod where the unfinished one does not fit": (
        oldest_first(by_bind_time),
        TWO_AND_ONE,
        cores(10, 10, 5, 5),
        ["two/c0", "one/c0", "two/c1", None],
    ),
    "by creation time pods of one second are in arbitrary order": (
        gpu_manager(by_creation_time),
        OF_ONE_SECOND,
        cores(10),
        ["a/c0"],
    ),
    "by the time of binding they are not": (
        gpu_manager(by_bind_time),
        OF_ONE_SECOND,
        cores(10),
        ["b/c0"],
    ),
    "gpushare compares the call with the total of a pod": (
        gpushare(by_bind_time),
        [pod("two", 1, (1, 4), (1, 4)), pod("four", 2, (1, 4)), pod("eight", 3, (1, 8))],
        memory(4, 8, 8),
        ["four", "two", "eight"],
    ),
    "gpushare never finds a pod of several containers by its own calls": (
        gpushare(by_bind_time),
        [pod("two", 1, (1, 4), (1, 4))],
        memory(4, 4),
        [None, None],
    ),
    "volcano counts a pod as assigned after its first container": (
        volcano(by_bind_time),
        [pod("two", 1, (1, 4), (1, 8)), pod("next", 2, (1, 8))],
        memory(4, 8, 8),
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


@pytest.mark.parametrize(
    ("named", "verdict"),
    [
        (Named("a", "c0"), Verdict.RIGHT),
        (Named("a", None), Verdict.RIGHT),
        (Named("a", "c1"), Verdict.WRONG),
        (Named("b", "c0"), Verdict.WRONG),
        (None, Verdict.REFUSED),
    ],
)
def test_an_answer_is_judged_by_the_pod_and_by_the_container_if_it_names_one(
    named: Named | None, verdict: Verdict
) -> None:
    assert judge(call(10, whose="a"), named) is verdict
