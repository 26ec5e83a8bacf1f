"""The demo: examples, rejections and a burst, on a cluster of real processes."""

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent.tickets import summarize
from contract.allocation import decode_allocations
from contract.demand import ContainerKind, parse_pod_demand
from contract.names import Names
from contract.stamps import OrderStamp
from simulator.attribution import (
    Call,
    Pending,
    allocate_calls,
    score_agent,
    score_oldest_pending,
)
from simulator.audit import holdings_of, per_card, unequal_records
from simulator.burst import burst_pods, submit
from simulator.client import ApiClient, ApiError
from simulator.cluster import Cluster, read_lines
from simulator.manifests import Json, read_manifests
from simulator.report import Report, Row

CARDS = 4
_SETTLE_SECONDS = 40.0


def cards_file(count: int = CARDS, memory: str = "24Gi") -> Json:
    """Make the content of a cards file: equal cards, two to a PCIe switch, two NUMA nodes."""
    return {
        "cards": [
            {
                "uuid": f"GPU-{index}{index}{index}{index}0000-5eed-4a2d-8c1f-00000000000{index}",
                "index": index,
                "minor": index,
                "model": "Simulated A30",
                "memory": memory,
                "numa": index // 2,
                "busId": f"00000000:{0x3B + index:02X}:00.0",
            }
            for index in range(count)
        ],
        "links": [
            {"cards": [one, other], "kind": "PIX" if one // 2 == other // 2 else "SYS"}
            for one in range(count)
            for other in range(one + 1, count)
        ],
    }


def run_demo(examples: Path, *, seed: int, pods: int, clients: int) -> bool:
    """Run the demo.

    Args:
        examples: a folder of manifests; files with ``invalid`` in their name are to be refused.
        seed: of everything random.
        pods: how many pods the burst has.
        clients: how many clients create them at once.

    Returns:
        Whether everything was right.

    Raises:
        ClusterError: a process did not come up or died.
        ValueError: an example cannot be read.
        OSError: an example cannot be read, or a process cannot be started.
    """
    began = time.monotonic()
    report, names = Report(), Names()
    files = sorted(examples.glob("*.yaml"))
    if not files:
        raise ValueError(f"{examples}: no *.yaml files there")
    report.say(
        f"Starting API server, scheduler, kubelet, webhook (TLS) and agent, {CARDS} cards of 24 GiB"
    )
    with Cluster(cards_file(), seed=seed, names=names) as cluster:
        story = _Story(cluster, names, report)
        story.good_examples([each for each in files if "invalid" not in each.name])
        story.bad_examples([each for each in files if "invalid" in each.name])
        story.burst(burst_pods(pods, seed=seed, names=names), clients)
    report.say(
        f"\n{'Nothing was wrong' if story.right else 'SOMETHING WAS WRONG'}; "
        f"{time.monotonic() - began:.0f} s, no process or file left behind."
    )
    return story.right


class _Story:
    """The parts of the demo, one after the other, on one cluster."""

    def __init__(self, cluster: Cluster, names: Names, report: Report) -> None:
        self._cluster = cluster
        self._names = names
        self._report = report
        self.right = True

    def good_examples(self, files: Sequence[Path]) -> None:
        """Create what is valid, and show what it got."""
        self._report.heading(f"Created from {files[0].parent.name}/: what each container got")
        manifests = [each for file in files for each in read_manifests(file)]
        for manifest in manifests:
            self._cluster.create(_in_default(manifest))
        found = self._settled({each["metadata"]["name"] for each in manifests})
        self._report.containers(self._rows(found))
        self._expect(held=all(_phase(each) == "Running" for each in found))
        for each in found:
            self._cluster.api.delete(_path(each))
        self._cluster.wait("deletion", lambda: not self._cluster.pods(), within=_SETTLE_SECONDS)

    def bad_examples(self, files: Sequence[Path]) -> None:
        """Create what is not valid, and show the refusals."""
        self._report.heading("Refused at creation: what kubectl shows")
        for file in files:
            for manifest in read_manifests(file):
                try:
                    self._cluster.create(_in_default(manifest))
                except ApiError as error:
                    self._report.say(f"$ kubectl create -f {file.name}\n{error.as_kubectl()}")
                    self._expect(held=error.status == 422)
                else:
                    self._report.say(f"{file.name}: was NOT refused")
                    self._expect(held=False)

    def burst(self, pods: Sequence[Json], clients: int) -> None:
        """Create many pods at once, and tell who named the right container how often."""
        containers = sum(
            len(parse_pod_demand(each["spec"], self._names).containers) for each in pods
        )
        self._report.heading(
            f"A burst: {len(pods)} pods with {containers} GPU containers from {clients} clients"
        )
        bound = _BindTimes(self._cluster.api.server)
        began = time.monotonic()
        submit(self._cluster.create, pods, clients=clients)
        found = self._settled({each["metadata"]["name"] for each in pods})
        took = time.monotonic() - began
        times = bound.stop()
        failed = [each for each in found if _phase(each) == "Failed"]
        for each in failed:
            self._report.say(f"{each['metadata']['name']}: {each['status'].get('message')}")
        self._expect(held=not failed)
        burst = {each["metadata"]["name"] for each in pods}
        calls = [each for each in self._calls() if each.who[1] in burst]
        names = self._names
        log = [
            each
            for each in self._cluster.agent_log()
            if each.get("pod", "").partition("/")[2] in burst
        ]
        agent, wrong = score_agent(
            calls,
            log,
            resources={names.core: "core", names.memory: "memory"},
            summarize=summarize,
        )
        oldest = score_oldest_pending(
            calls, [_pending(each, names, times) for each in found], core=names.core
        )
        self._report.tallies(
            [
                ("gpu-turnstile: the container the kubelet recorded", agent),
                ("oldest pending pod of equal cores (core calls only)", oldest),
            ]
        )
        evidence = Counter(each["evidence"] for each in log if each["event"] == "allocate")
        self._report.say(
            "evidence: " + ", ".join(f"{count} by {by}" for by, count in evidence.most_common())
        )
        for call, named in wrong[:5]:
            self._report.say(f"wrong: {call.who} {call.resource}, named {named}")
        unequal = unequal_records(found, holdings_of(calls), names)
        for text in unequal[:5]:
            self._report.say(text)
        self._expect(held=agent.wrong == 0 and agent.right == len(calls) > 0 and not unequal)
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
                _phase(each) in ("Failed", "Succeeded")
                or (_phase(each) == "Running" and self._names.gpu_allocation in _notes(each))
                for each in found
            )

        self._cluster.wait("pods", settled, within=_SETTLE_SECONDS)
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def _places(self, places: Mapping[str, int]) -> str:
        return _counts(places.get(self._names.core, 0), places.get(self._names.memory, 0))

    def _calls(self) -> list[Call]:
        return allocate_calls(read_lines(self._cluster.trace))

    def _rows(self, pods: Sequence[Json]) -> list[Row]:
        held = holdings_of(self._calls())
        index = {each["uuid"]: each["index"] for each in cards_file()["cards"]}
        rows = []
        for each in pods:
            name = each["metadata"]["name"]
            recorded = decode_allocations(_notes(each).get(self._names.gpu_allocation, "{}"))
            for container in parse_pod_demand(each["spec"], self._names).containers:
                who = (each["metadata"]["namespace"], name, container.name)
                got = {index[card]: got for card, got in per_card(held.get(who, {})).items()}
                record = recorded.get(container.name)
                kind = "" if container.kind is ContainerKind.MAIN else f" ({container.kind})"
                rows.append(
                    Row(
                        name,
                        container.name + kind,
                        _counts(container.demand.cores, container.demand.memory),
                        "; ".join(
                            f"card {card}: {self._places(places)}"
                            for card, places in sorted(got.items())
                        )
                        or _phase(each),
                        record.evidence.value if record else "-",
                    )
                )
        return rows


class _BindTimes:
    """Watches when each pod is bound; the rule that goes by age cannot know a pod before that."""

    def __init__(self, server: str) -> None:
        self._client = ApiClient(server)
        self._times: dict[str, float] = {}
        self._watch = self._client.watch("/api/v1/pods", resource_version="0")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for event in self._watch:
                if event.type != "BOOKMARK" and event.object["spec"].get("nodeName"):
                    name = event.object["metadata"]["name"]
                    self._times.setdefault(name, time.time() * 1000)
        except ApiError:
            return  # the demo is over

    def stop(self) -> Mapping[str, float]:
        self._watch.close()
        self._thread.join(5)
        self._client.close()
        return self._times


def _pending(pod: Json, names: Names, bound: Mapping[str, float]) -> Pending:
    name = pod["metadata"]["name"]
    return Pending(
        pod["metadata"]["namespace"],
        name,
        # When it was created, as such a plugin knows a pod's age: the time of the binding,
        # which our webhook writes since, is more than anybody else stamps.
        OrderStamp.decode(_notes(pod)[names.admission_order]).time_ns,
        bound.get(name, 0.0),
        tuple(
            (each.name, each.demand.cores)
            for each in parse_pod_demand(pod["spec"], names).containers
        ),
    )


def _counts(cores: int, blocks: int) -> str:
    return f"{cores} cores" + (f", {blocks} blocks" if blocks else "")


def _in_default(manifest: Json) -> Json:
    copied: Json = json.loads(json.dumps(manifest))
    copied["metadata"].setdefault("namespace", "default")
    return copied


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _notes(pod: Json) -> dict[str, Any]:
    notes: dict[str, Any] = pod["metadata"].get("annotations") or {}
    return notes
