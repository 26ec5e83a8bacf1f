"""The recorded burst of a real kubelet, parsed: targets of its calls, and what ``List`` showed."""

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.allocator.interfaces import ListedContainer, ListedPod
from contract.requests import read_pod_demand
from simulator.rules import Candidate, RuleCall
from tests.agent.fakes import NAMES, RESOURCES

RECORDING = Path(__file__).parents[1] / "data" / "kubelet-1.36-burst80.json.gz"

_CALLS_OF_A_CONTAINER = 4
"""A preferred call and an ``Allocate`` for each of the two resources (facts K1, K2)."""


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """A preferred call for one resource of a container, and the ``Allocate`` after it.

    Attributes:
        request: the call with its true target.
        listed: what ``List`` showed in the preferred call of pods that still lacked something;
            ``None`` if the kubelet's rate limit turned it away (fact K5).
    """

    request: RuleCall
    listed: Sequence[ListedPod] | None


@functools.cache
def load_burst() -> tuple[Sequence[Candidate], Sequence[RecordedCalls]]:
    """Return the pods of the burst, and its calls.

    The calls of one container come together (fact K1). If ``List`` was turned away in one of them,
    the others show the target.
    """
    with gzip.open(RECORDING, "rt", encoding="utf-8") as file:
        document = json.load(file)
    pods = tuple(map(_candidate, document["pods"]))
    calls = [each for each in document["calls"] if each["rpc"] != "PreStartContainer"]
    found: list[RecordedCalls] = []
    for begin in range(0, len(calls), _CALLS_OF_A_CONTAINER):
        group = calls[begin : begin + _CALLS_OF_A_CONTAINER]
        pod, container = _target(group, pods)
        for prefer, allocate in (group[:2], group[2:]):
            request = RuleCall(
                RESOURCES[allocate["resource"]],
                allocate["ids"],
                document["first_call_ns"] + int(allocate["ms"] * 1e6),
                pod,
                container,
            )
            listed = tuple(_listed(prefer["lacking"])) if "lacking" in prefer else None
            found.append(RecordedCalls(request, listed))
    return pods, found


def _candidate(pod: Mapping[str, Any]) -> Candidate:
    spec = {
        "containers": [
            {"name": each["name"], "resources": {"limits": each["limits"]}}
            for each in pod["containers"]
        ]
    }
    return Candidate(
        pod["pod"],
        pod["uid"],
        pod["bind_ns"],
        pod["bind_ns"],
        read_pod_demand({"spec": spec}, NAMES)[0].containers,
    )


def _target(group: Sequence[Mapping[str, Any]], pods: Sequence[Candidate]) -> tuple[str, str]:
    """Return the container of four calls: the first that lacked the requested resource."""
    by_name = {each.pod: each for each in pods}
    for call in group:
        for pod, containers in call.get("lacking", {}).items():
            lacking = [
                each.name
                for each in by_name[pod].containers
                if call["resource"] not in containers.get(each.name, ())
            ]
            if lacking:
                return pod, lacking[0]
    raise ValueError(f"no target is shown of these calls: {group}")


def _listed(lacking: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[ListedPod]:
    """Build listed pods; the recording has the resources of which a container held devices."""
    for key, containers in lacking.items():
        namespace, _, name = key.partition("/")
        yield ListedPod(
            namespace,
            name,
            tuple(
                ListedContainer(
                    container, {RESOURCES[each]: frozenset({f"{key}/{container}"}) for each in held}
                )
                for container, held in containers.items()
            ),
        )
