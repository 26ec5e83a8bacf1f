"""The parts of the demo: each does something on a cluster, shows it, and tells if it was right."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from contract.allocation import decode_allocations
from contract.demand import ContainerKind
from contract.inventory import Inventory
from contract.requests import read_pod_demand
from contract.resource import Resource
from contract.stamps import OrderStamp
from simulator.audit import holdings_of, per_card, records_of, unequal_records
from simulator.burst import submit
from simulator.client import ApiError
from simulator.cluster import NAMES, SimulatedCluster
from simulator.manifests import Json, read_manifests
from simulator.node.judge import Admission, Verdict, count, in_log, judge
from simulator.objects import annotations, phase
from simulator.report import Report
from simulator.rules import Candidate, RuleCall, gpu_manager, score

_SETTLE_SECONDS = 300.0  # on two idle cores 6
_KNOWN_BY = {
    "ticket": "the device IDs had been reserved for one container before",
    "record": "the kubelet's checkpoint or List shows the container with just these device IDs",
    "witness": "one container still lacked cards, by the kubelet's checkpoint and List",
    "order": "a guess: several containers lacked cards, this was the likeliest",
}
"""What each evidence means: how the agent knew which container a call was for."""


class Story:
    """What happens on one cluster, part after part."""

    def __init__(self, cluster: SimulatedCluster, inventory: Inventory, report: Report) -> None:
        self.right = True
        self._cluster = cluster
        self._index = {card.uuid: card.index for card in inventory.cards}
        self._report = report

    def good_examples(self, files: Sequence[Path]) -> None:
        """Create what is valid, and show what it got."""
        self._report.heading(f"Created from {files[0].parent.name}/: what went in, what came out")
        manifests = [each for file in files for each in read_manifests(file)]
        for manifest in manifests:
            self._cluster.create(_in_default(manifest))
        found = self._settled({each["metadata"]["name"] for each in manifests})
        shown = self._rows(found)
        self._report.table(("POD", "CONTAINER", "ASKED", "EVIDENCE", "GOT"), shown)
        self._report.say("EVIDENCE: how the agent knew for which container the kubelet called it")
        for word in sorted({row[3] for row in shown} & _KNOWN_BY.keys()):
            self._report.say(f"  {word}: {_KNOWN_BY[word]}")
        self._expect(held=all(phase(each) == "Running" for each in found))
        self._cluster.clear()

    def bad_examples(self, files: Sequence[Path]) -> None:
        """Create what is not valid, and show the refusals; whoever is in a hurry, one of them."""
        told, refused = [], 0
        for file in files:
            for manifest in read_manifests(file):
                try:
                    self._cluster.create(_in_default(manifest))
                except ApiError as error:
                    told.append(f"$ kubectl create -f {file.name}\n{error.as_kubectl()}")
                    refused += error.status == 422
                else:
                    told.append(f"{file.name}: was NOT refused")
        self._expect(held=refused == len(told))
        self._report.heading(f"Refused at creation: {refused} of {len(told)} bad examples")
        self._report.say(told[0])
        for text in told[1:]:
            self._report.detail.say(text)

    def burst(
        self, pods: Sequence[Json], clients: int, *, node: str, meanwhile: Callable[[], object]
    ) -> None:
        """Create many pods of a node at once; tell who named the right container how often.

        *meanwhile* is done while they are admitted.
        """
        for each in pods:
            each["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        containers = sum(len(read_pod_demand(each["spec"], NAMES)[0].containers) for each in pods)
        self._report.heading(
            f"A burst: {len(pods)} pods with {containers} GPU containers from {clients} clients, "
            "and what another rule would have done"
        )
        began = time.monotonic()
        submit(self._cluster.create, pods, clients=clients)
        meanwhile()
        found = self._settled({each["metadata"]["name"] for each in pods})
        took = time.monotonic() - began
        failed = [each for each in found if phase(each) == "Failed"]
        for each in failed:
            self._report.say(f"{each['metadata']['name']}: {each['status'].get('message')}")
        self._expect(held=not failed)
        uids = {each["metadata"]["uid"] for each in found}
        calls = [each for each in self._cluster.trace() if each.pod_uid in uids]
        answers = in_log(self._cluster.agent_log())
        resources = {NAMES.core: Resource.CORE, NAMES.memory: Resource.MEMORY}
        judged = judge(calls, answers, resources)
        agent = count(judged)
        requests = [_request(each) for each in judged if each.resource is Resource.CORE]
        candidates = [_candidate(each) for each in found]
        oldest = score(requests, gpu_manager(candidates, requests))
        rules = {
            "gpu-turnstile: the container the kubelet recorded": agent,
            "gpu-manager: the oldest pod of as many cores (core calls only)": oldest,
        }
        self._report.table(
            ("RULE", "ALLOCATE CALLS", "RIGHT", "WRONG", "REFUSED"),
            [
                (rule, str(verdicts.total()), *(str(verdicts[each]) for each in Verdict))
                for rule, verdicts in rules.items()
            ],
            counts=True,
        )
        for by, number in Counter(each.evidence for each in judged).most_common():
            if by is not None:
                self._report.say(f"  {number} by {by}: {_KNOWN_BY[by]}")
        wrong = [each for each in judged if each.verdict is Verdict.WRONG]
        for one in wrong[:5]:
            self._report.say(f"wrong: {one}")
        unequal = unequal_records(holdings_of(calls), records_of(found, NAMES), NAMES)
        for text in unequal[:5]:
            self._report.say(text)
        self._expect(held=agent[Verdict.RIGHT] == len(judged) > 0 and not unequal)
        running = len(found) - len(failed)
        self._report.say(
            f"{running} of {len(found)} pods running after {took:.1f} s; the record on "
            f"{len(found) - len(unequal)} pods equals the kubelet's."
        )

    def _expect(self, held: bool) -> None:  # noqa: FBT001 -- reads as "expect that"
        self.right = self.right and held

    def _settled(self, wanted: set[str]) -> list[Json]:
        """Wait until pods run with their allocation recorded, or have failed."""
        found: list[Json] = []

        def settled() -> bool:
            found[:] = [each for each in self._cluster.pods() if each["metadata"]["name"] in wanted]
            return len(found) == len(wanted) and all(
                phase(each) in ("Failed", "Succeeded")
                or (phase(each) == "Running" and NAMES.gpu_allocation in annotations(each))
                for each in found
            )

        self._cluster.wait("pods", settled, within=_SETTLE_SECONDS)
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def _places(self, places: Mapping[str, int]) -> str:
        return _counts(places.get(NAMES.core, 0), places.get(NAMES.memory, 0))

    def _rows(self, pods: Sequence[Json]) -> list[tuple[str, str, str, str, str]]:
        """Return pod, container, what it asked for, the evidence and what it got."""
        held = holdings_of(self._cluster.trace())
        found = []
        for each in pods:
            name = each["metadata"]["name"]
            recorded = decode_allocations(annotations(each).get(NAMES.gpu_allocation, "{}"))
            for one in read_pod_demand(each["spec"], NAMES)[0].containers:
                who = each["metadata"]["uid"], one.name
                got = {self._index[card]: got for card, got in per_card(held.get(who, {})).items()}
                record = recorded.get(one.name)
                kind = "" if one.kind is ContainerKind.MAIN else f" ({one.kind})"
                found.append(
                    (
                        name,
                        one.name + kind,
                        _counts(one.demand.cores, one.demand.memory),
                        record.evidence.value if record else "-",
                        "; ".join(
                            f"card {card}: {self._places(places)}"
                            for card, places in sorted(got.items())
                        )
                        or phase(each),
                    )
                )
        return found


def _request(admission: Admission) -> RuleCall:
    call = admission.event
    pod = f"{call.namespace}/{call.pod}"
    return RuleCall(admission.resource, len(call.ids), int(call.unix_ms * 1e6), pod, call.container)


def _candidate(pod: Json) -> Candidate:
    metadata, stamps = pod["metadata"], annotations(pod)
    created = OrderStamp.decode(stamps[NAMES.admission_order]).time_ns
    # A busy webhook is not waited for at a binding.
    bound = OrderStamp.decode(stamps.get(NAMES.bind_order, stamps[NAMES.admission_order])).time_ns
    # Such a plugin knows a pod's age by its creation: the time of the binding, which our webhook
    # writes since, is more than anybody else stamps.
    containers = read_pod_demand(pod["spec"], NAMES)[0].containers
    name = f"{metadata['namespace']}/{metadata['name']}"
    return Candidate(name, metadata["uid"], bound, created, containers)


def _counts(cores: int, blocks: int) -> str:
    told = [f"{cores} core{'' if cores == 1 else 's'}"]
    if blocks:
        told.append(f"{blocks} block{'' if blocks == 1 else 's'}")
    return ", ".join(told)


def _in_default(manifest: Json) -> Json:
    copied: Json = json.loads(json.dumps(manifest))
    copied["metadata"].setdefault("namespace", "default")
    return copied
