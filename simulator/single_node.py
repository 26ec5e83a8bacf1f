"""The parts of the demo on one node; each runs on a cluster, prints the result and checks it."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from contract.allocation import decode_allocations
from contract.demand import CORES_PER_CARD, ContainerKind, Demand
from contract.inventory import Inventory
from contract.requests import read_pod_demand
from contract.resource import Resource
from contract.reusable import most_at_once
from contract.stamps import OrderStamp
from simulator.audit import holdings_of, per_card, records_of, unequal_records
from simulator.burst import submit
from simulator.client import ApiError
from simulator.cluster import NAMES, SimulatedCluster
from simulator.manifests import Json, read_manifests
from simulator.node.judge import Attribution, JudgedCall, count, decisions_in_log, judge
from simulator.objects import annotations, phase
from simulator.report import Report
from simulator.rules import Candidate, RuleCall, gpu_manager, score

_EVIDENCE = {
    "ticket": "the device IDs were reserved for one container before the call",
    "record": "the kubelet's checkpoint or List shows the container with exactly these device IDs",
    "witness": "the kubelet's checkpoint and List show one container that still needs devices",
    "order": "a guess: several containers needed devices, and this was the likeliest",
}
"""The meaning of each evidence word (docs/reference.md#evidence)."""


class SingleNodeDemo:
    """The parts of the demo that use one node."""

    def __init__(self, cluster: SimulatedCluster, inventory: Inventory, report: Report) -> None:
        self.right = True
        self._cluster = cluster
        self._index = {card.uuid: card.index for card in inventory.cards}
        self._report = report

    def good_examples(self, files: Sequence[Path]) -> None:
        """Create valid pods, as many at once as the node has cores for; show their allocations."""
        self._report.heading(f"Pods from {files[0].parent.name}/, and their devices")
        found, shown = list[Json](), list[tuple[str, ...]]()
        for manifests in self._batches(each for file in files for each in read_manifests(file)):
            for manifest in manifests:
                self._cluster.create(_in_default(manifest))
            settled = self._settled({each["metadata"]["name"] for each in manifests})
            found += settled
            shown += self._rows(settled)
            self._cluster.clear()
        self._report.table(("POD", "CONTAINER", "REQUESTS", "EVIDENCE", "ALLOCATED"), shown)
        self._report.print_line("EVIDENCE: how the agent found the container of the kubelet's call")
        for word in sorted({row[3] for row in shown} & _EVIDENCE.keys()):
            self._report.print_line(f"  {word}: {_EVIDENCE[word]}")
        self._expect(held=all(phase(each) == "Running" for each in found))

    def _batches(self, pods: Iterable[Json]) -> Iterator[list[Json]]:
        """Divide pods into groups, each with at most as many cores as the node."""
        batch, used = list[Json](), 0
        for pod in pods:
            cores = most_at_once(read_pod_demand(pod, NAMES)[0], Resource.CORE)
            if used + cores > CORES_PER_CARD * len(self._index):
                yield batch
                batch, used = [], 0
            batch.append(pod)
            used += cores
        yield batch

    def bad_examples(self, files: Sequence[Path]) -> None:
        """Create invalid pods and show the first denial; all of them if verbose."""
        shown, denied = [], 0
        for file in files:
            for manifest in read_manifests(file):
                try:
                    self._cluster.create(_in_default(manifest))
                except ApiError as error:
                    shown.append(f"$ kubectl create -f {file.name}\n{error.as_kubectl()}")
                    denied += error.status == 422
                else:
                    shown.append(f"{file.name}: was NOT denied")
        self._expect(held=denied == len(shown))
        self._report.heading(f"Denied at creation: {denied} of {len(shown)} invalid examples")
        self._report.print_line(shown[0])
        for text in shown[1:]:
            self._report.detail.print_line(text)

    def burst(
        self, pods: Sequence[Json], clients: int, *, node: str, meanwhile: Callable[[], object]
    ) -> None:
        """Create many pods for one node at once; count which rule finds the right container.

        *meanwhile* is called while the kubelet admits them.
        """
        for each in pods:
            each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        containers = sum(len(read_pod_demand(each, NAMES)[0].containers) for each in pods)
        self._report.heading(
            f"Burst: {len(pods)} pods, {containers} GPU containers, {clients} clients. "
            "How many calls were matched to the right container?"
        )
        began = time.monotonic()
        submit(self._cluster.create, pods, clients=clients)
        meanwhile()
        found = self._settled({each["metadata"]["name"] for each in pods})
        took = time.monotonic() - began
        failed = [each for each in found if phase(each) == "Failed"]
        for each in failed:
            self._report.print_line(f"{each['metadata']['name']}: {each['status'].get('message')}")
        self._expect(held=not failed)
        uids = {each["metadata"]["uid"] for each in found}
        calls = [each for each in self._cluster.trace() if each.pod_uid in uids]
        decisions = decisions_in_log(self._cluster.agent_log())
        resources = {NAMES.core: Resource.CORE, NAMES.memory: Resource.MEMORY}
        judged = judge(calls, decisions, resources)
        agent = count(judged)
        requests = [_request(each) for each in judged if each.resource is Resource.CORE]
        candidates = [_candidate(each) for each in found]
        oldest = score(requests, gpu_manager(candidates, requests))
        rules = {
            "gpu-turnstile: the kubelet's own state": agent,
            "gpu-manager: the oldest pod that requests this": oldest,
        }
        self._report.table(
            ("RULE", "CALLS", "RIGHT", "WRONG", "REFUSED"),
            [
                (rule, str(verdicts.total()), *(str(verdicts[each]) for each in Attribution))
                for rule, verdicts in rules.items()
            ],
            counts=True,
        )
        for by, number in Counter(each.evidence for each in judged).most_common():
            if by is not None:
                self._report.print_line(f"  {number} by evidence {by}: {_EVIDENCE[by]}")
        wrong = [each for each in judged if each.verdict is Attribution.WRONG]
        for one in wrong[:5]:
            self._report.print_line(f"wrong: {one}")
        unequal = unequal_records(holdings_of(calls), records_of(found, NAMES), NAMES)
        for text in unequal[:5]:
            self._report.print_line(text)
        self._expect(held=agent[Attribution.RIGHT] == len(judged) > 0 and not unequal)
        running = len(found) - len(failed)
        self._report.print_line(
            f"{running} of {len(found)} pods running after {took:.1f} s; "
            f"{len(found) - len(unequal)} gpu-allocation annotations match the kubelet."
        )

    def _expect(self, held: bool) -> None:  # noqa: FBT001 -- reads as "expect that"
        self.right = self.right and held

    def _settled(self, wanted: set[str]) -> list[Json]:
        """Wait until the pods run and have their allocation annotation, or have failed."""
        found: list[Json] = []

        def settled() -> bool:
            found[:] = [each for each in self._cluster.pods() if each["metadata"]["name"] in wanted]
            return len(found) == len(wanted) and all(
                phase(each) in ("Failed", "Succeeded")
                or (phase(each) == "Running" and NAMES.gpu_allocation in annotations(each))
                for each in found
            )

        self._cluster.wait("pods", settled)
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def _slots(self, slots: Mapping[str, int]) -> str:
        return _counts(slots.get(NAMES.core, 0), slots.get(NAMES.memory, 0))

    def _rows(self, pods: Sequence[Json]) -> list[tuple[str, str, str, str, str]]:
        """Return pod, container, requests, evidence and allocation."""
        held = holdings_of(self._cluster.trace())
        found = []
        for each in pods:
            name = each["metadata"]["name"]
            annotated = decode_allocations(annotations(each).get(NAMES.gpu_allocation, "{}"))
            for one in read_pod_demand(each, NAMES)[0].containers:
                key = each["metadata"]["uid"], one.name
                by_card = per_card(held.get(key, {}))
                slots_of = {self._index[card]: slots for card, slots in by_card.items()}
                allocation = annotated.get(one.name)
                kind = "" if one.kind is ContainerKind.MAIN else f" ({one.kind})"
                found.append(
                    (
                        name,
                        one.name + kind,
                        _requests(one.demand),
                        allocation.evidence.value if allocation else "-",
                        "; ".join(
                            f"card {card}: {self._slots(slots)}"
                            for card, slots in sorted(slots_of.items())
                        )
                        or phase(each),
                    )
                )
        return found


def _requests(demand: Demand) -> str:
    each = _counts(demand.cores // demand.split, demand.memory // demand.split)
    return f"{demand.split} x ({each})" if demand.split > 1 else each


def _request(admission: JudgedCall) -> RuleCall:
    call = admission.event
    pod = f"{call.namespace}/{call.pod}"
    return RuleCall(admission.resource, len(call.ids), int(call.unix_ms * 1e6), pod, call.container)


def _candidate(pod: Json) -> Candidate:
    metadata, stamps = pod["metadata"], annotations(pod)
    created = OrderStamp.decode(stamps[NAMES.admission_order]).time_ns
    # A pod has no bind order if the webhook did not respond in time at its binding.
    bound = OrderStamp.decode(stamps.get(NAMES.bind_order, stamps[NAMES.admission_order])).time_ns
    # gpu-manager knows only the creation time of a pod: nothing stamps the time of the binding
    # for it, as our webhook does.
    containers = read_pod_demand(pod, NAMES)[0].containers
    name = f"{metadata['namespace']}/{metadata['name']}"
    return Candidate(name, metadata["uid"], bound, created, containers)


def _counts(cores: int, blocks: int) -> str:
    parts = [f"{cores} core{'' if cores == 1 else 's'}"]
    if blocks:
        parts.append(f"{blocks} block{'' if blocks == 1 else 's'}")
    return ", ".join(parts)


def _in_default(manifest: Json) -> Json:
    copied: Json = json.loads(json.dumps(manifest))
    copied["metadata"].setdefault("namespace", "default")
    return copied
