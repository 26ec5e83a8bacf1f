"""A node with cards by claims: containers hold what kube-scheduler allocated."""

import itertools
import json
import os
import signal
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import yaml

from agent.runtime.api import runtime_pb2
from agent.runtime.cri import UID_LABEL
from common.grpc_services import make_stub
from contract.claims import CLAIM, DRA_MODE, MODE_LABEL, driver_name, request_names
from contract.demand import ContainerKind
from contract.requests import read_pod_demand
from contract.resource import Resource
from tests.e2e.cluster import Cluster, Json, Kubectl
from tests.e2e.ground import Ground, phase, wait
from tests.e2e.installation import (
    AGENTS,
    NAMESPACE,
    WEBHOOK,
    Installation,
    installing,
    kill,
    processes_of,
)
from tests.e2e.manifests import CARDS
from tests.e2e.settings import Settings
from tests.runtime.api import cri_pb2
from tests.runtime.containerd import Cri
from view.model.claims import NO_DEVICES

AGENT, CLAIMS = "daemonset/gpu-turnstile-agent-dra", "deployment/gpu-turnstile-claims"
OLDEST_MINOR = 36
_FORGOTTEN_SECONDS = 420.0
_CHECKPOINT = "kubelet_internal_checkpoint"
_OTHER_CARDS = "gpu-turnstile-e2e-cards"


class ClaimGround(Ground):
    """The node, whose allocations are read from claims: ``List`` does not show them."""

    def __init__(
        self, settings: Settings, cluster: Cluster, *, kubectl: Kubectl, **more: Any
    ) -> None:
        super().__init__(settings, cluster, **more)
        self.kubectl = kubectl
        self.inside = kubectl.inside(cluster.namespace)

    @property
    def driver(self) -> str:
        return driver_name(self.names)

    def claims(self) -> list[Json]:
        return self.inside.items("resourceclaims")

    def templates(self) -> list[str]:
        found = self.inside.items("resourceclaimtemplates")
        return sorted(each["metadata"]["name"] for each in found)

    def published(self) -> list[Json]:
        found = self.kubectl.items("resourceslices", f"--field-selector=spec.driver={self.driver}")
        return [device for each in found for device in each["spec"].get("devices") or ()]

    def devices(self) -> dict[str, str]:
        """Return the card of each device of the node's slices."""
        return {each["name"]: each["attributes"]["uuid"]["string"] for each in self.published()}

    def listed(self) -> dict[tuple[str, str], dict[Resource, frozenset[str]]]:
        """Make device IDs of what the scheduler allocated, numbered one after the other."""
        cards, pods = self.devices(), self.cluster.pods()
        numbers: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(itertools.count)
        claimed: dict[str, dict[str, list[Json]]] = {}
        for claim in self.claims():
            (owner,) = claim["metadata"]["ownerReferences"]
            allocation = claim.get("status", {}).get("allocation") or {}
            results = allocation.get("devices", {}).get("results", ())
            for each in results:
                claimed.setdefault(owner["name"], {}).setdefault(each["request"], []).append(each)
        held = {}
        for pod, requests in claimed.items():
            if pod not in pods:
                held[pod, ""] = dict[Resource, frozenset[str]]()
                continue
            demand, _ = read_pod_demand(pods[pod], self.names)
            for container in demand.containers:
                request = request_names(demand)[container.name]
                if container.kind is not ContainerKind.INIT:  # it may share a later one's request
                    held[pod, container.name] = {
                        Resource.CORE: _ids(requests[request], "cores", cards, numbers),
                        Resource.MEMORY: _ids(requests[request], "memory", cards, numbers)
                        if container.demand.memory
                        else frozenset(),
                    }
        return held

    def limits_of(self, pod: Json, container: str) -> str:
        return request_names(read_pod_demand(pod, self.names)[0])[container]

    def clear(self) -> None:
        """Delete all pods: with grace period 0 they are deleted before their containers end."""
        super().clear()
        wait("the end of all claims on the node", lambda: not self.prepared(), within=120)

    def forget_plugin(self) -> None:
        """Make the kubelet forget a device plugin that it knew, if that can be hastened."""
        if self.settings.restart_kubelet:  # else it takes five minutes
            # The kubelet writes the file when devices change; without a plugin they do not.
            (self.settings.plugin_dir / _CHECKPOINT).unlink(missing_ok=True)
            self.restart_kubelet()

    def drop_counts(self) -> None:
        none = dict.fromkeys((self.names.core, self.names.memory))
        patch = {"status": {"capacity": none, "allocatable": none}}
        self.kubectl.run(
            *("patch", "node", self.node, "--subresource=status", "--type=merge"),
            f"--patch={json.dumps(patch)}",
        )

    def missing_support(self) -> str:
        version = self.kubectl.json("version")["serverVersion"]
        info = self.cluster.node(self.node)["status"]["nodeInfo"]
        if int(version["minor"].rstrip("+")) < OLDEST_MINOR:
            return f"claims need Kubernetes 1.{OLDEST_MINOR}, this is {version['gitVersion']}"
        runtime = info["containerRuntimeVersion"]
        return f"{runtime} reads no CDI specs" if runtime.startswith("containerd://1.") else ""

    def prepared(self) -> list[Path]:
        return sorted(Path("/var/run/cdi").glob("gpu-turnstile-claim-*"))


def _ids(
    results: Iterable[Json],
    capacity: str,
    cards: Mapping[str, str],
    numbers: Mapping[tuple[str, str], Iterator[int]],
) -> frozenset[str]:
    return frozenset(
        f"{cards[each['device']]}::{next(numbers[each['device'], capacity])}"
        for each in results
        for _ in range(int(each["consumedCapacity"][capacity]))
    )


class Claimed:
    """What is installed for a node with the label."""

    def __init__(self, ground: ClaimGround, installation: Installation) -> None:
        self.ground = ground
        self.installation = installation
        self._kubectl, self._inside = ground.kubectl, ground.inside
        self._agents = ground.kubectl.inside(AGENTS)

    def count(self, condition: Callable[[Json], bool]) -> int:
        return sum(map(condition, self.ground.cluster.pods().values()))

    def running(self) -> int:
        return self.count(lambda pod: phase(pod) == "Running")

    def runs_more_than(self, number: int) -> bool:
        return self.running() > number

    def used(self, quota: str) -> dict[str, str]:
        found = self._inside.json("get", f"resourcequota/{quota}")
        return dict(found.get("status", {}).get("used", {}))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.ground.report(f"{what}: {time.monotonic() - began:.1f} s")

    def nvlink_groups(self) -> list[set[str]]:
        groups: defaultdict[int, set[str]] = defaultdict(set)
        for each in self.ground.published():
            group = each["attributes"].get("nvlinkGroup")
            if group:
                groups[group["int"]].add(each["name"])
        return [groups[each] for each in sorted(groups)]

    def scheduled(self, name: str) -> bool | None:
        """Return whether kube-scheduler has bound a pod; ``None`` before it has seen its claim."""
        pod = self.ground.cluster.pods()[name]
        if pod["spec"].get("nodeName"):
            return True
        conditions = pod.get("status", {}).get("conditions") or ()
        return False if any(NO_DEVICES in each.get("message", "") for each in conditions) else None

    @contextmanager
    def linked(self, pairs: Iterable[tuple[int, int]]) -> Iterator[None]:
        """Give the node NVLinks between these cards, and none between others."""
        wanted = {*pairs}
        volumes = self._agents.json("get", AGENT)["spec"]["template"]["spec"]["volumes"]
        (before,) = [each["configMap"]["name"] for each in volumes if each["name"] == "cards"]
        data = self._agents.json("get", f"configmap/{before}")["data"]
        cards = yaml.safe_load(data["cards.yaml"]) | {
            "links": [{"cards": [*each], "kind": "NV4"} for each in sorted(wanted)]
        }
        made = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": _OTHER_CARDS},
            "data": {"cards.yaml": yaml.safe_dump(cards)},
        }

        def use(name: str) -> None:
            volume = {"name": "cards", "configMap": {"name": name}}
            patch = {"spec": {"template": {"spec": {"volumes": [volume]}}}}
            self._agents.run("patch", AGENT, f"--patch={json.dumps(patch)}")
            self.installation.rolled_out(AGENTS, AGENT)

        self._agents.run("create", "--filename=-", stdin=json.dumps(made))
        try:
            use(_OTHER_CARDS)
            wait("the node's links", lambda: self._links() == wanted, within=90)
            yield
        finally:
            use(before)
            self._agents.run("delete", f"configmap/{_OTHER_CARDS}")

    def _links(self) -> set[tuple[int, int]]:
        annotations = self.ground.cluster.node(self.ground.node)["metadata"]["annotations"]
        found: Json = json.loads(annotations.get(self.ground.names.gpu_cards, "{}"))
        return {(one, other) for one, other in (each["cards"] for each in found.get("links", ()))}

    def create(self, made: Json, name: str) -> None:
        named = json.dumps(made | {"metadata": {"name": name}})
        self._inside.run("create", "--filename=-", stdin=named)

    def delete(self, *objects: str) -> None:
        self._inside.run("delete", *objects)

    def kill(self, program: str, namespace: str = AGENTS) -> None:
        """Kill a program of ours in each of its pods on this host."""
        selector = f"--selector=app.kubernetes.io/name=gpu-turnstile-{program}"
        for pod in self._kubectl.inside(namespace).items("pods", selector):
            kill(program, pod["metadata"]["uid"])

    def kill_sandboxes(self) -> None:
        """End the tests' pods and their sandboxes, as a reboot does, with a kubelet that restarts.

        CRI-O's sandboxes have no process.
        """
        uids = [each["metadata"]["uid"] for each in self.ground.cluster.pods().values()]
        for process in processes_of(*uids):
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        self.ground.restart_kubelet()  # before: the old one would make the next sandboxes
        with grpc.insecure_channel(f"unix:{self.ground.settings.cri_socket}") as channel:
            runtime = make_stub(channel, runtime_pb2.DESCRIPTOR, "RuntimeService")
            for uid in uids:
                own = runtime_pb2.PodSandboxFilter(label_selector={UID_LABEL: uid})
                request = runtime_pb2.ListPodSandboxRequest(filter=own)
                for each in runtime.ListPodSandbox(request, timeout=30).items:
                    stop = cri_pb2.StopPodSandboxRequest(pod_sandbox_id=each.id)
                    Cri(channel).StopPodSandbox(stop, timeout=30)

    @contextmanager
    def without_agent(self) -> Iterator[None]:
        """End the agent, by a label that no node has; start it again in the end."""

        def select(value: str | None) -> None:
            selector = {"spec": {"template": {"spec": {"nodeSelector": {"e2e/never": value}}}}}
            self._agents.run("patch", AGENT, f"--patch={json.dumps(selector)}")

        select("true")
        agents = "--selector=app.kubernetes.io/name=gpu-turnstile-agent"
        wait("the agent's end", lambda: not self._agents.items("pods", agents))
        try:
            yield
        finally:
            select(None)
            self.installation.rolled_out(AGENTS, AGENT)

    def allocate_as(self, first: Json, second: str) -> None:
        """Allocate the cards of another pod to a pod, and bind it, as a scheduler does."""
        pods = self.ground.cluster.pods
        wait("its claim", lambda: claim_of(pods()[second]))
        pod = pods()[second]
        first_claim = self._inside.json("get", f"resourceclaim/{claim_of(first)}")
        allocation = first_claim["status"]["allocation"]
        for number, each in enumerate(allocation["devices"]["results"]):
            each["shareID"] = f"{uuid.uuid4()}"
            each["request"] = pod["spec"]["containers"][number]["name"]
        user = {"resource": "pods", "name": second, "uid": pod["metadata"]["uid"]}
        status = {"status": {"allocation": allocation, "reservedFor": [user]}}
        self._inside.run(
            *("patch", f"resourceclaim/{claim_of(pod)}", "--subresource=status"),
            *("--type=merge", f"--patch={json.dumps(status)}"),
        )
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": second},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.ground.node},
        }
        path = f"/api/v1/namespaces/{self.ground.cluster.namespace}/pods/{second}/binding"
        self._kubectl.run("create", f"--raw={path}", "--filename=-", stdin=json.dumps(binding))

    def wait_until_ready(self) -> None:
        for namespace, each in ((NAMESPACE, WEBHOOK), (NAMESPACE, CLAIMS), (AGENTS, AGENT)):
            self.installation.rolled_out(namespace, each)


@contextmanager
def claiming(ground: ClaimGround, folder: Path, *, unused: int) -> Iterator[Claimed]:
    """Install the component; templates that no pod names are swept after *unused* seconds."""
    library = folder / "vcuda"
    library.mkdir()
    patches = [
        _environment("DaemonSet", AGENTS, AGENT, "GPU_TURNSTILE_DRIVER_DIR", str(library)),
        _environment("Deployment", NAMESPACE, CLAIMS, "GPU_TURNSTILE_CLAIMS_UNUSED", f"{unused}"),
        _runtime(ground.settings.cri_socket),
    ]
    kubectl, node = ground.kubectl, ground.node
    components, more = ("vcuda", "dra"), {"patches": patches}
    with installing(
        ground.settings, kubectl, folder, components=components, more=more
    ) as installation:
        claimed = Claimed(ground, installation)
        kubectl.run("label", "node", node, f"{MODE_LABEL}={DRA_MODE}")
        try:
            installation.apply()
            claimed.wait_until_ready()
            ground.forget_plugin()
            counted = lambda: ground.offered() == CARDS * 100  # noqa: E731
            wait("the node's counts", counted, within=_FORGOTTEN_SECONDS)
            yield claimed
        finally:
            ground.drop_counts()
            kubectl.run("label", "node", node, f"{MODE_LABEL}-")


def _environment(kind: str, namespace: str, workload: str, name: str, value: str) -> Json:
    _, _, of = workload.partition("/")
    container = of.removeprefix("gpu-turnstile-").removesuffix("-dra")
    spec = {"containers": [{"name": container, "env": [{"name": name, "value": value}]}]}
    return _patch(kind, namespace, of, spec)


def _runtime(socket: Path) -> Json:
    """Make the agent use the container runtime's socket, as docs/distributions.md does."""
    setting = {"name": "GPU_TURNSTILE_CRI_SOCKET", "value": f"/run/containerd/{socket.name}"}
    spec = {
        "containers": [{"name": "agent", "env": [setting]}],
        "volumes": [{"name": "containerd", "hostPath": {"path": str(socket.parent)}}],
    }
    return _patch("DaemonSet", AGENTS, AGENT.partition("/")[2], spec)


def _patch(kind: str, namespace: str, of: str, spec: Json) -> Json:
    patch = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": of, "namespace": namespace},
        "spec": {"template": {"spec": spec}},
    }
    return {"patch": json.dumps(patch)}


def claim_of(pod: Json) -> str:
    statuses = pod.get("status", {}).get("resourceClaimStatuses") or []
    return next((each["resourceClaimName"] for each in statuses if each["name"] == CLAIM), "")
