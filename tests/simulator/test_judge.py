"""The judge, the rules that it compares with, and the audit of annotations."""

from datetime import UTC, datetime
from typing import Any

import pytest

from contract.allocation import Allocation, Evidence
from contract.demand import ContainerDemand, ContainerKind, Demand
from contract.names import Names
from contract.resource import Resource
from simulator.audit import held_twice, holdings_of, unequal_records
from simulator.kubelet.trace import TraceEvent
from simulator.node.judge import Attribution, decisions_in_log, judge
from simulator.rules import Candidate, RuleCall, gpu_manager, score

NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
BEGAN = 1_700_000_000_000.0


def _call(pod: str, number: int, *, resource: str = CORE, at: float = 0.0) -> TraceEvent:
    """A call for a pod's container ``main`` that takes 10 ms."""
    ids = (f"GPU-0::{number}",)
    who = {"pod_uid": pod, "namespace": "default", "pod": pod, "container": "main"}
    fields: dict[str, Any] = {"rpc": "Allocate", "resource": resource, "ids": ids, **who}
    return TraceEvent(at, BEGAN + at, "rpc", took_ms=10.0, **fields)


def _line(pod: str, number: int, at: float = 5.0) -> dict[str, Any]:
    return {
        "time": datetime.fromtimestamp((BEGAN + at) / 1000, UTC).isoformat(timespec="milliseconds"),
        "message": "allocate",
        "pod": f"default/{pod}",
        "container": "main",
        "resource": "core",
        "evidence": "ticket",
        "ids": f"GPU-0::{number}",
    }


def test_the_agent_is_right_if_it_names_the_container_of_a_call() -> None:
    calls = [_call("a", 0), _call("b", 1), _call("c", 2), _call("d", 0, at=100.0)]
    log = [
        _line("a", 0),
        _line("a", 1),
        _line("c", 2) | {"message": "prefer"},
        _line("x", 0, at=50.0),  # in a call of a kubelet that was killed before the response
        _line("d", 0, at=105.0),
    ]
    judged = judge(calls, decisions_in_log(log), {CORE: Resource.CORE})
    assert [each.verdict for each in judged] == [
        *(Attribution.RIGHT, Attribution.WRONG, Attribution.WRONG, Attribution.RIGHT)
    ]
    assert [each.decision and each.decision.named.pod for each in judged] == [
        *("default/a", "default/a", None, "default/d")
    ]


def _request(name: str, container: str = "main", at: int = 10) -> RuleCall:
    return RuleCall(Resource.CORE, 1, at, f"default/{name}", container)


def _pod(name: str, age: int, *containers: str, bound: int = 0) -> Candidate:
    demands = (ContainerDemand(each, ContainerKind.MAIN, 0, Demand(1, 1)) for each in containers)
    return Candidate(f"default/{name}", name, bound, age, tuple(demands))


@pytest.mark.parametrize(
    ("order", "verdict"), [(["old", "new"], Attribution.RIGHT), (["new", "old"], Attribution.WRONG)]
)
def test_the_rule_of_age_is_right_only_where_age_is_the_order(
    order: list[str], verdict: Attribution
) -> None:
    pods, calls = [_pod("old", 1, "main"), _pod("new", 2, "main")], list(map(_request, order))
    assert score(calls, gpu_manager(pods, calls)) == {verdict: 2}


def test_the_rule_of_age_finishes_a_pod_it_has_begun_before_an_older_one() -> None:
    pods = [_pod("old", 1, "main", bound=20), _pod("begun", 2, "one", "two")]
    calls = [_request("begun", "one"), _request("begun", "two", at=30)]
    assert score(calls, gpu_manager(pods, calls)) == {Attribution.RIGHT: 2}


def test_a_slot_that_two_pods_hold_is_found() -> None:
    assert held_twice(holdings_of([_call("a", 0), _call("b", 1)])) == []
    assert held_twice(holdings_of([_call("a", 0), _call("b", 0)])) == [f"{CORE} GPU-0::0: a and b"]


def test_an_annotation_that_differs_from_held_devices_is_found() -> None:
    held = holdings_of([_call("a", 0), _call("a", 3, resource=MEMORY)])
    of_a = "a", "main"
    right, wrong = (Allocation((card,), 1, 1, Evidence.WITNESS) for card in ("GPU-0", "GPU-1"))
    assert unequal_records(held, {of_a: right}, NAMES) == []
    assert len(unequal_records(held, {of_a: wrong}, NAMES)) == 1
    assert len(unequal_records(held, {}, NAMES)) == 1
