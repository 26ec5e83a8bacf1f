"""The recording, and what is refused of one."""

from collections import Counter
from typing import Any

import pytest

from bench.recording import RECORDING, InvalidRecording, Recorded, load_burst, parse_burst
from bench.rules import Request
from contract.names import Names
from contract.resource import Resource

NAMES = Names()


def recording(*calls: dict[str, Any]) -> dict[str, Any]:
    """One pod of one container."""
    return {
        "pods": [
            {
                "pod": "default/a",
                "uid": "1",
                "bind_ns": 5,
                "creationTimestamp": "2026-11-21T03:09:18Z",
                "containers": [{"name": "c0", "limits": {NAMES.core: "10", NAMES.memory: "4"}}],
            }
        ],
        "first_call_ns": 1_000_000_000,
        "calls": calls,
    }


def pair(resource: str, ids: int, **seen: Any) -> list[dict[str, Any]]:
    """A preferred call, and the Allocate after it."""
    return [
        {"rpc": "GetPreferredAllocation", "resource": resource, "size": ids, "ms": 1.0, **seen},
        {"rpc": "Allocate", "resource": resource, "ids": ids, "ms": 2.0, **seen},
    ]


def test_the_burst_of_a_real_kubelet_is_read_whole() -> None:
    burst = load_burst(RECORDING, NAMES)
    assert len(burst.pods) == 80
    assert len(burst.calls) == 268
    asked = Counter((each.request.pod, each.request.container) for each in burst.calls)
    assert set(asked.values()) == {2}
    assert asked.keys() == {(pod.pod, each.name) for pod in burst.pods for each in pod.containers}


def test_a_call_whose_list_was_turned_away_is_told_by_its_neighbours() -> None:
    calls = [
        *pair(NAMES.core, 10, list="RESOURCE_EXHAUSTED: rejected by rate limit"),
        *pair(NAMES.memory, 4, lacking={"default/a": {"c0": [NAMES.core]}}),
    ]
    core, memory = parse_burst(recording(*calls), NAMES).calls
    request = Request(Resource.CORE, 10, 1_002_000_000, "default/a", "c0")
    assert core == Recorded(request, None)
    assert memory.request.pod == "default/a"
    assert memory.observe is not None
    assert [one.held.keys() for one in memory.observe.lacking[0].containers] == [{Resource.CORE}]


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (pair(NAMES.core, 10), "calls: 2 are no whole number of containers"),
        (
            [*pair(NAMES.core, 10), *pair(NAMES.memory, 4)],
            "calls[0]: nothing shows whose these are",
        ),
        (
            [
                *pair(NAMES.core, 10, lacking={"default/a": {"c0": []}})[::-1],
                *pair(NAMES.memory, 4),
            ],
            "calls[0]: not pairs of a preference and an Allocate",
        ),
    ],
)
def test_a_recording_that_does_not_add_up_is_refused(
    calls: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(InvalidRecording) as refused:
        parse_burst(recording(*calls), NAMES)
    assert str(refused.value) == message
