"""Scoring rules against the kubelet's trace, and auditing records against what it holds."""

import pytest

from contract.allocation import Allocation, Evidence, encode_allocations
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.names import Names
from contract.resource import Resource
from simulator.attribution import Call, Candidate, Request, gpu_manager, score, score_agent
from simulator.audit import held_twice, holdings_of, unequal_records
from simulator.burst import container, pod
from simulator.node.judge import Verdict

NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory


def _call(
    pod_name: str, name: str, ids: list[str], *, resource: str = CORE, at: float = 10.0
) -> Call:
    return Call(("default", pod_name, name), resource, frozenset(ids), at)


def test_the_agent_is_right_where_its_log_names_the_container_the_call_was_for() -> None:
    calls = [_call("a", "main", ["G::0"]), _call("b", "main", ["G::1"]), _call("c", "x", ["G::2"])]
    log = [
        {
            "message": "allocate",
            "pod": "default/a",
            "container": "main",
            "resource": "core",
            "ids": "0",
        },
        {
            "message": "allocate",
            "pod": "default/a",
            "container": "main",
            "resource": "core",
            "ids": "1",
        },
        {"message": "prefer", "pod": "default/c", "container": "x", "resource": "core", "ids": "2"},
    ]
    tally, wrong = score_agent(
        calls,
        log,
        resources={CORE: "core"},
        summarize=lambda ids: next(iter(ids)).partition("::")[2],
    )
    assert tally == {Verdict.RIGHT: 1, Verdict.WRONG: 2}
    assert wrong == [(calls[1], ("default", "a", "main")), (calls[2], None)]


def _asked(name: str, container: str = "main", at: int = 10) -> Request:
    return Request(Resource.CORE, 1, at, f"default/{name}", container)


def _pod(name: str, age: int, *containers: str, bound: int = 0) -> Candidate:
    asks = (ContainerDemand(each, ContainerKind.MAIN, 0, Demand(1, 1)) for each in containers)
    return Candidate(f"default/{name}", name, bound, age, tuple(asks))


@pytest.mark.parametrize(
    ("order", "verdict"), [(["old", "new"], Verdict.RIGHT), (["new", "old"], Verdict.WRONG)]
)
def test_the_rule_of_age_is_right_only_where_age_is_the_order(
    order: list[str], verdict: Verdict
) -> None:
    pods, calls = [_pod("old", 1, "main"), _pod("new", 2, "main")], list(map(_asked, order))
    assert score(calls, gpu_manager(pods, calls)) == {verdict: 2}


def test_the_rule_of_age_finishes_a_pod_it_has_begun_before_an_older_one() -> None:
    pods = [_pod("old", 1, "main", bound=20), _pod("begun", 2, "one", "two")]
    calls = [_asked("begun", "one"), _asked("begun", "two", at=30)]
    assert score(calls, gpu_manager(pods, calls)) == {Verdict.RIGHT: 2}


def test_a_place_of_two_live_pods_is_found_and_one_handed_on_within_a_pod_is_not() -> None:
    held = holdings_of(
        [
            _call("a", "init", ["G::0"]),
            _call("a", "main", ["G::0"]),
            _call("b", "main", ["G::0"]),
            _call("ended", "main", ["G::0"]),
        ]
    )
    assert held_twice(held, [("default", "a"), ("default", "ended")]) != []
    assert held_twice(held, [("default", "a")]) == []
    assert held_twice(held, [("default", "a"), ("default", "b")]) == [
        f"{CORE} G::0: ('default', 'a') and ('default', 'b')"
    ]


def test_a_record_that_differs_from_what_is_held_is_found() -> None:
    manifest = pod("a", [container("main", 1, 1, NAMES)])
    held = holdings_of(
        [_call("a", "main", ["G::0"]), _call("a", "main", ["G::3"], resource=MEMORY)]
    )
    right = {"main": Allocation(("G",), 1, 1, Evidence.WITNESS)}
    manifest["metadata"]["annotations"] = {NAMES.gpu_allocation: encode_allocations(right)}
    assert unequal_records([manifest], held, NAMES) == []
    wrong = {"main": Allocation(("H",), 1, 1, Evidence.WITNESS)}
    manifest["metadata"]["annotations"] = {NAMES.gpu_allocation: encode_allocations(wrong)}
    assert len(unequal_records([manifest], held, NAMES)) == 1
    del manifest["metadata"]["annotations"]
    assert len(unequal_records([manifest], held, NAMES)) == 1
