"""The recorded burst of a real kubelet, parsed: targets of its calls, and what ``List`` showed."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.allocator.interfaces import ListedContainer, ListedPod
from contract.names import Names
from contract.requests import read_pod_demand
from contract.resource import Resource
from simulator.rules import Candidate, RuleCall

RECORDING = Path(__file__).parents[1] / "data" / "kubelet-1.36-burst80.json.gz"

_CALLS_OF_A_CONTAINER = 4
"""A preferred call and an ``Allocate`` for each of the two resources (facts K1, K2)."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What ``List`` showed in a preferred call: the pods that still lacked something.

    ``None`` in place of a sight: the kubelet's rate limit turned the ``List`` away (fact K5).
    """

    lacking: tuple[ListedPod, ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One resource of one container: the preferred call, and the ``Allocate`` after it.

    Attributes:
        observe: what the preferred call could see.
    """

    request: RuleCall
    observe: Sight | None


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst."""

    pods: tuple[Candidate, ...]
    calls: tuple[Recorded, ...]


def load_burst(path: Path, names: Names) -> Burst:
    """Read and parse a recording.

    The calls of one container come together (fact K1): where the ``List`` of one of them was
    turned away, the others say whose they are.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document = json.load(file)
    pods = tuple(_candidate(each, names) for each in document["pods"])
    resources = {names.core: Resource.CORE, names.memory: Resource.MEMORY}
    calls = [each for each in document["calls"] if each["rpc"] != "PreStartContainer"]
    found: list[Recorded] = []
    for begin in range(0, len(calls), _CALLS_OF_A_CONTAINER):
        group = calls[begin : begin + _CALLS_OF_A_CONTAINER]
        pod, container = _whose(group, pods)
        for prefer, allocate in (group[:2], group[2:]):
            request = RuleCall(
                resources[allocate["resource"]],
                allocate["ids"],
                document["first_call_ns"] + int(allocate["ms"] * 1e6),
                pod,
                container,
            )
            found.append(Recorded(request, _observe(prefer, resources)))
    return Burst(pods, tuple(found))


def _candidate(pod: Mapping[str, Any], names: Names) -> Candidate:
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
        read_pod_demand({"spec": spec}, names)[0].containers,
    )


def _whose(group: Sequence[Mapping[str, Any]], pods: Sequence[Candidate]) -> tuple[str, str]:
    """Return the container of four calls: the first that lacked what was asked."""
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
    raise ValueError(f"nothing shows whose these calls are: {group}")


def _observe(call: Mapping[str, Any], resources: Mapping[str, Resource]) -> Sight | None:
    return Sight(tuple(_listed(call["lacking"], resources))) if "lacking" in call else None


def _listed(
    lacking: Mapping[str, Mapping[str, Sequence[str]]], resources: Mapping[str, Resource]
) -> Iterator[ListedPod]:
    """Build listed pods; the recording has the resources of which a container held devices."""
    for key, containers in lacking.items():
        namespace, _, name = key.partition("/")
        yield ListedPod(
            namespace,
            name,
            tuple(
                ListedContainer(
                    container,
                    {resources[each]: frozenset({f"{key}/{container}"}) for each in held},
                )
                for container, held in containers.items()
            ),
        )
