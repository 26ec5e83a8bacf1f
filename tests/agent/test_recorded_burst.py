"""A burst on a real kubelet, recorded: 80 pods of 1 to 3 GPU containers from 32 clients at once.

The recording holds every call of the kubelet, in order, and what ``List`` showed inside the
call. Whom a call was for is read off the recording itself: at any moment one pod was lacking,
and within it the first container that lacked (facts K1 and K3).
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.podresources import ListedContainer, ListedPod
from agent.allocator.pods import Pods
from agent.allocator.record import Seen, read_record
from agent.allocator.resolver import Ask, Resolution, Turn, resolve
from agent.kubernetes_api.pod_parser import parse_pod
from contract.allocation import Evidence
from contract.demand import ContainerDemand
from contract.names import Names
from contract.resource import Resource, count_of
from contract.stamps import OrderStamp

RECORDING = Path(__file__).parent.parent / "data" / "kubelet-1.36-burst80.json.gz"
NAMES = Names()
RESOURCES = {NAMES.core: Resource.CORE, NAMES.memory: Resource.MEMORY}
Lacking = Mapping[str, Mapping[str, list[str]]]


@dataclass(frozen=True)
class Call:
    """One ``GetPreferredAllocation`` or ``Allocate``, and what ``List`` showed in it."""

    rpc: str
    ask: Ask
    lacking: Lacking | None


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(RECORDING.read_bytes()))
    return found


@pytest.fixture(scope="module")
def pods(recording: dict[str, Any]) -> dict[str, PodView]:
    """The pods as the API showed them, stamped at bind."""
    views = {}
    for each in recording["pods"]:
        namespace, name = each["pod"].split("/")
        obj = {
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": each["uid"],
                "creationTimestamp": each["creationTimestamp"],
                "annotations": {NAMES.bind_order: OrderStamp(each["bind_ns"], "w", 0).encode()},
            },
            "spec": {
                "containers": [
                    {"name": container["name"], "resources": {"limits": container["limits"]}}
                    for container in each["containers"]
                ]
            },
        }
        views[each["pod"]] = parse_pod(obj, NAMES)
    return views


@pytest.fixture(scope="module")
def calls(recording: dict[str, Any]) -> list[Call]:
    return list(_calls(recording))


def _calls(recording: Mapping[str, Any]) -> Iterator[Call]:
    for each in recording["calls"]:
        if each["rpc"] != "PreStartContainer":
            size = each["size"] if each["rpc"] == "GetPreferredAllocation" else each["ids"]
            yield Call(each["rpc"], Ask(RESOURCES[each["resource"]], size), each.get("lacking"))


def _truth(call: Call, pods: Mapping[str, PodView]) -> tuple[PodView, ContainerDemand]:
    """Whom the recording shows the call to be for: the only pod, its first container lacking."""
    assert call.lacking is not None
    ((name, held),) = call.lacking.items()
    pod = pods[name]
    container = next(
        each for each in pod.demand.containers if len(held.get(each.name, ())) < len(Resource)
    )
    return pod, container


def _resolve(call: Call, views: Mapping[str, PodView]) -> Resolution:
    """Settle a call as the first of an agent; the API shows all pods all the time."""
    pods = Pods()
    pods.update(list(views.values()))
    lacking = call.lacking
    record = read_record(
        written=Checkpoint(),
        listed=None if lacking is None else [_listed(*each) for each in lacking.items()],
        services=(),
        pods=pods,
        seen=Seen(confirmed={each.id.uid for each in views.values()}),
    )
    return resolve(call.ask, record, Turn())


def _listed(pod: str, containers: Mapping[str, list[str]]) -> ListedPod:
    namespace, name = pod.split("/")
    return ListedPod(
        namespace,
        name,
        tuple(
            ListedContainer(
                container,
                {RESOURCES[each]: frozenset({f"{pod}/{container}"}) for each in held},
            )
            for container, held in containers.items()
        ),
    )


def test_the_recording_is_whole(recording: dict[str, Any], calls: list[Call]) -> None:
    assert len(recording["pods"]) == 80
    containers = sum(len(each["containers"]) for each in recording["pods"])
    assert Counter(call.rpc for call in calls) == {
        "GetPreferredAllocation": 2 * containers,
        "Allocate": 2 * containers,
    }
    # the rest were refused by the kubelet's rate limit (K5)
    assert sum(call.lacking is not None for call in calls) == 487


def test_the_recorded_sizes_are_those_of_the_container_the_recording_shows(
    calls: list[Call], pods: dict[str, PodView]
) -> None:
    """Guards the truth below: a wrong reading of it would show here."""
    for call in calls:
        if call.lacking is not None:
            _, container = _truth(call, pods)
            assert count_of(container.demand, call.ask.resource) == call.ask.size


def test_every_call_with_a_witness_is_resolved_to_the_container_the_kubelet_was_admitting(
    calls: list[Call], pods: dict[str, PodView]
) -> None:
    for call in calls:
        if call.lacking is None:
            continue
        found = _resolve(call, pods)
        pod, container = _truth(call, pods)
        assert (found.pod, found.container) == (pod.id, container)
        assert found.evidence is Evidence.WITNESS


def test_a_call_without_a_witness_is_never_called_witnessed(
    calls: list[Call], pods: dict[str, PodView]
) -> None:
    blind = [call for call in calls if call.lacking is None]
    assert blind
    for call in blind:
        assert _resolve(call, pods).evidence is Evidence.ORDER
