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


def test_gpu_manager_names_the_oldest_pod_of_equal_cores() -> None:
    pods = [pod("b", 2, (10, 4)), pod("a", 1, (5, 4)), pod("c", 3, (10, 8))]
    answers = gpu_manager(by_bind_time)(pods, [call(10), call(10), call(5)])
    assert answers == [Named("b", "c0"), Named("c", "c0"), Named("a", "c0")]


def test_gpu_manager_does_not_know_a_pod_before_it_is_bound() -> None:
    pods = [pod("late", 50, (10, 4))]
    assert gpu_manager(by_bind_time)(pods, [call(10, at=49), call(10, at=50)]) == [
        None,
        Named("late", "c0"),
    ]


def test_gpu_manager_insists_on_the_unfinished_pod() -> None:
    """One mistake shifts all that follow (fact K6)."""
    pods = [pod("two", 1, (10, 4), (5, 4)), pod("one", 2, (10, 4))]
    answers = gpu_manager(by_bind_time)(pods, [call(10), call(10), call(5), call(10)])
    assert answers == [Named("two", "c0"), None, Named("two", "c1"), Named("one", "c0")]


def test_oldest_first_goes_on_to_the_next_pod_where_the_unfinished_one_does_not_fit() -> None:
    pods = [pod("two", 1, (10, 4), (5, 4)), pod("one", 2, (10, 4))]
    answers = oldest_first(by_bind_time)(pods, [call(10), call(10), call(5), call(5)])
    assert answers == [Named("two", "c0"), Named("one", "c0"), Named("two", "c1"), None]


def test_by_creation_time_pods_of_one_second_are_in_arbitrary_order() -> None:
    pods = [pod("b", 1, (10, 4), created=7), pod("a", 2, (10, 4), created=7)]
    assert gpu_manager(by_creation_time)(pods, [call(10)]) == [Named("a", "c0")]
    assert gpu_manager(by_bind_time)(pods, [call(10)]) == [Named("b", "c0")]


def test_gpushare_compares_the_call_with_the_total_of_a_pod() -> None:
    pods = [pod("two", 1, (1, 4), (1, 4)), pod("four", 2, (1, 4)), pod("eight", 3, (1, 8))]
    requests = [call(4, resource=MEMORY), call(8, resource=MEMORY), call(8, resource=MEMORY)]
    assert gpushare(by_bind_time)(pods, requests) == [
        Named("four", None),
        Named("two", None),
        Named("eight", None),
    ]


def test_gpushare_never_finds_a_pod_of_several_containers_by_its_own_calls() -> None:
    pods = [pod("two", 1, (1, 4), (1, 4))]
    assert gpushare(by_bind_time)(pods, [call(4, resource=MEMORY)] * 2) == [None, None]


def test_volcano_counts_a_pod_as_assigned_after_its_first_container() -> None:
    pods = [pod("two", 1, (1, 4), (1, 8)), pod("next", 2, (1, 8))]
    requests = [call(4, resource=MEMORY), call(8, resource=MEMORY), call(8, resource=MEMORY)]
    assert volcano(by_bind_time)(pods, requests) == [Named("two", None), Named("next", None), None]


@pytest.mark.parametrize(
    "rule",
    [
        gpu_manager(by_bind_time),
        oldest_first(by_bind_time),
        gpushare(by_bind_time),
        volcano(by_bind_time),
    ],
)
def test_no_rule_depends_on_the_order_in_which_pods_are_told(rule: Rule) -> None:
    pods = [pod(f"p{number}", number % 3, (10, 4)) for number in range(9)]
    requests = [call(10 if number % 2 else 4) for number in range(9)]
    assert rule(pods, requests) == rule(pods[::-1], requests)


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
