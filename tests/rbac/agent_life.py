"""Real agents, driven through everything for which they ask the API server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from agent.app.supervisor import Agent
from agent.kubernetes_api.inventory import InventoryPace
from common.kubelet_api import deviceplugin_pb2 as pb
from common.kubelet_api import podresources_pb2 as lister
from simulator.api.resources import PODS
from simulator.api.server import ApiServer, kubeconfig_for
from tests.agent.fakes import (
    NAMES,
    FakeKubelet,
    eventually,
    make_manifest,
    make_settings,
    plugin,
    short_dir,
    write_cards,
)

_LONG_S = 600.0


class _Kubelet(FakeKubelet):
    """A kubelet whose pods are all in one namespace."""

    def __init__(self, folder: Path, namespace: str) -> None:
        super().__init__(folder)
        self._namespace = namespace

    def List(  # noqa: N802 -- the API's name
        self, request: lister.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> lister.ListPodResourcesResponse:
        answer = super().List(request, context)
        for each in answer.pod_resources:
            each.namespace = self._namespace
        return answer


class AgentLife:
    """One node with its agent, and the pods of one namespace.

    Args:
        server: the API server.
        folder: for files.
        node: the node's name; pods have it in theirs.
        namespace: of the pods.
    """

    def __init__(self, server: ApiServer, folder: Path, *, node: str, namespace: str) -> None:
        self._server, self._folder = server, folder
        self._node, self._namespace = node, namespace

    def live(self) -> None:
        """Do everything once; returns when every request has been answered."""
        self._server.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._namespace}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node}},
        )
        with short_dir() as sockets, _Kubelet(sockets, self._namespace) as kubelet:
            kubelet.start()
            with self._agent(kubelet):
                self._a_pod_is_served_and_its_record_written(kubelet)
                self._a_pod_that_the_watch_has_not_shown_is_asked_for(kubelet)
                self._a_refusal_is_told(kubelet)
                self._the_inventory_is_written()
                self._a_watch_from_forgotten_history_begins_with_a_list()
            kubelet.restart()
            with self._agent(kubelet):
                self._what_was_told_before_a_restart_is_told_again(kubelet)

    @contextmanager
    def _agent(self, kubelet: FakeKubelet) -> Iterator[None]:
        path = self._folder / f"kubeconfig-{self._node}"
        path.write_text(kubeconfig_for(self._server.url))
        settings = make_settings(
            self._folder,
            node_name=self._node,
            kubeconfig=path,
            kubelet_dir=kubelet.plugin_dir,
            plugin_dir=kubelet.plugin_dir,
            pod_resources_socket=kubelet.pod_resources,
            cards=write_cards(self._folder / "cards.yaml"),
        )
        before = len(kubelet.registered)
        agent = Agent(settings, inventory_pace=InventoryPace(write=0.05, settle=0.05))
        agent.start()
        try:
            eventually(lambda: _both_of(kubelet.registered[before:]), "the agent registers")
            yield
        finally:
            agent.stop()

    def _asked(self, verb: str, resource: str) -> int:
        """Count requests of this node's agent, told by the names in them."""
        return sum(
            each.verb == verb
            and each.resource == resource
            and (not each.namespace or each.namespace == self._namespace)
            and (each.resource != "nodes" or each.name == self._node)
            and not each.user_agent.startswith("gpu-turnstile-simulator")
            for each in self._server.requests
        )

    def _await(self, verb: str, resource: str, times: int = 1) -> None:
        eventually(lambda: self._asked(verb, resource) >= times, f"{verb} {resource}: {times}")

    def _pod(self, name: str, cores: int, blocks: int) -> str:
        manifest = make_manifest(f"{name}-{self._node}", (cores, blocks), node=self._node)
        manifest["metadata"]["namespace"] = self._namespace
        self._server.apply(manifest)
        return str(manifest["metadata"]["name"])

    def _a_pod_is_served_and_its_record_written(self, kubelet: FakeKubelet) -> None:
        _serve(kubelet, self._pod("served", 30, 8), 30, 8)
        self._await("patch", "pods")

    def _a_pod_that_the_watch_has_not_shown_is_asked_for(self, kubelet: FakeKubelet) -> None:
        self._server.delay_watches(PODS, _LONG_S)
        try:
            _serve(kubelet, self._pod("unseen", 20, 4), 20, 4)
            self._await("get", "pods")
        finally:
            self._server.delay_watches(PODS, 0)
        self._await("patch", "pods", 2)

    def _a_refusal_is_told(self, kubelet: FakeKubelet) -> None:
        self._large = self._pod("large", 30, 999)
        _refused(kubelet, self._large, 30, 999)
        self._await("create", "events")

    def _the_inventory_is_written(self) -> None:
        self._await("patch", "nodes")
        self._await("get", "nodes")  # which cards are cordoned

    def _a_watch_from_forgotten_history_begins_with_a_list(self) -> None:
        lists = self._asked("list", "pods")
        self._pod("late", 1, 1)
        self._server.expire_history()
        self._server.drop_watches()
        self._await("list", "pods", lists + 1)

    def _what_was_told_before_a_restart_is_told_again(self, kubelet: FakeKubelet) -> None:
        created, patched = self._asked("create", "events"), self._asked("patch", "events")
        _refused(kubelet, self._large, 30, 999)
        self._await("create", "events", created + 1)  # 409: it is there
        self._await("patch", "events", patched + 1)


def _serve(kubelet: FakeKubelet, pod: str, cores: int, blocks: int) -> None:
    """Do what a kubelet does for the one container of a pod."""
    kubelet.pods[pod] = {"c0": []}
    for stem, resource, size in (("vmemory", NAMES.memory, blocks), ("vcore", NAMES.core, cores)):
        with plugin(kubelet.path_of(stem)) as stub:
            offered = [
                each.ID for each in next(iter(stub.ListAndWatch(pb.Empty(), timeout=20))).devices
            ]
            taken = {
                device_id
                for containers in kubelet.pods.values()
                for _, device_ids in containers["c0"]
                for device_id in device_ids
            }
            wanted = pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=[each for each in offered if each not in taken],
                allocation_size=size,
            )
            (chosen,) = stub.GetPreferredAllocation(
                pb.PreferredAllocationRequest(container_requests=[wanted]), timeout=20
            ).container_responses
            asked = pb.ContainerAllocateRequest(devices_ids=chosen.deviceIDs)
            stub.Allocate(pb.AllocateRequest(container_requests=[asked]), timeout=20)
            kubelet.pods[pod]["c0"].append((resource, list(chosen.deviceIDs)))


def _refused(kubelet: FakeKubelet, pod: str, cores: int, blocks: int) -> None:
    try:
        _serve(kubelet, pod, cores, blocks)
    except grpc.RpcError:
        del kubelet.pods[pod]
    else:
        raise AssertionError(f"{pod} was served")


def _both_of(registered: Sequence[pb.RegisterRequest]) -> bool:
    """Return whether both resources are registered; a slow kubelet is told of one twice."""
    return {each.resource_name for each in registered} == {NAMES.core, NAMES.memory}
