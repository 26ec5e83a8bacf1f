"""A kubelet to start, stop, kill, restart and inspect: the interface of this package."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import ContainerKind
from simulator.client import ApiClient, Json
from simulator.kubelet.instance import RunningInstance
from simulator.kubelet.pods import Pod, parse_pod
from simulator.kubelet.runtime import SimulatedRuntime
from simulator.kubelet.seeding import seeded_random
from simulator.kubelet.settings import Settings
from simulator.kubelet.source import Op, PodBatch
from simulator.kubelet.staticpods import static_pod
from simulator.kubelet.trace import Trace


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices of one resource that a container of an active pod holds.

    Attributes:
        received: the container edits of its last start (envs, mounts, devices, annotations,
            cdi_devices, conflicts); empty before that.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    kind: ContainerKind
    resource: str
    ids: tuple[str, ...]
    received: Mapping[str, Any]


class Kubelet:
    """The kubelet of one node, across all its restarts.

    Args:
        settings: of the kubelet.
        api: the API server; ``None`` if pods come only from :meth:`add_pods` and no status is
            reported.
    """

    def __init__(self, settings: Settings, api: ApiClient | None = None) -> None:
        self.settings = settings
        self._api = api
        self.trace = Trace(settings.trace_path)
        self._runtime = SimulatedRuntime(settings.root_dir / "containers")
        self._starts = 0
        self._instance: RunningInstance | None = None
        self._static: dict[str, Pod] = {}

    def start(self) -> None:
        """Start; handle old sockets and the checkpoint as a new process does (K11).

        Raises:
            RuntimeError: the kubelet is running.
            OSError: a socket cannot be created.
        """
        if self._instance is not None:
            raise RuntimeError("the kubelet is running already")
        self._starts += 1
        random = seeded_random(self.settings.seed, self._starts)
        instance = RunningInstance(self.settings, self._api, self._runtime, self.trace, random)
        self._instance = instance
        instance.start()
        if self._static:
            instance.deliver(PodBatch(Op.PUT, tuple(self._static.values())))

    def stop(self) -> None:
        """Stop normally: containers keep running, sockets are removed."""
        self._end(leave_sockets=False)

    def kill(self) -> None:
        """Stop as by SIGKILL: nothing more is written, stale sockets stay."""
        self._end(leave_sockets=True)

    def restart(self) -> None:
        """Kill and start again."""
        self.kill()
        self.start()

    def reboot(self) -> None:
        """Kill, end every container, and start again; the agent's sockets are stale then."""
        self.kill()
        self._runtime.reboot()
        self.start()

    @property
    def crashed(self) -> bool:
        """Whether a hook has crashed the kubelet; call :meth:`kill` to clean up."""
        return self._instance is not None and self._instance.stopping.is_set()

    @property
    def serving(self) -> bool:
        """Whether an instance runs, or starts, that has not crashed."""
        return self._instance is not None and not self.crashed

    @property
    def instance(self) -> RunningInstance:
        """The running instance.

        Raises:
            RuntimeError: the kubelet is not running.
        """
        if self._instance is None:
            raise RuntimeError("the kubelet is not running")
        return self._instance

    # Pods without an API server

    def add_pods(self, *objects: Json) -> None:
        """Deliver new or changed pods as one batch.

        Without an API server, the first batch after a start stands for the first list: a pod that
        it lacks is deleted.
        """
        self.instance.deliver(PodBatch(Op.PUT, tuple(parse_pod(each) for each in objects)))

    def remove_pods(self, *objects: Json) -> None:
        """Deliver the deletion of pods."""
        self.instance.deliver(PodBatch(Op.DROP, tuple(parse_pod(each) for each in objects)))

    def add_static_pod(self, manifest: Json) -> str:
        """Run a pod from a manifest on the node; no mirror pod is created.

        Args:
            manifest: a pod; the node's name is appended to its name.

        Returns:
            The pod's UID.

        Raises:
            InvalidPod: the manifest is no pod.
        """
        pod = static_pod(manifest, self.settings.node_name)
        self._static[pod.uid] = pod
        self.instance.deliver(PodBatch(Op.PUT, (pod,)))
        return pod.uid

    def restart_container(self, namespace: str, name: str, container: str) -> None:
        """Crash a container; the kubelet starts it again (K12).

        Raises:
            KeyError: there is no such pod.
        """
        pod = self.instance.find(f"{namespace}/{name}")
        if pod is None:
            raise KeyError(f"{namespace}/{name}")
        self.instance.workers.restart(pod.uid, container)

    # Inspection

    def idle(self) -> bool:
        """Return whether all delivered pods were admitted or rejected."""
        return self.instance.idle()

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (capacity, allocatable) of extended resources, as the node reports them."""
        return self.instance.manager.counts()

    def held_devices(self) -> tuple[HeldDevices, ...]:
        """Return the devices that the containers of active pods hold."""
        return tuple(
            self._held(pod, name, resource, holding.ids)
            for pod, containers in sorted(
                self.instance.manager.active_holdings(), key=lambda each: each[0].uid
            )
            for name, resources in sorted(containers.items())
            for resource, holding in sorted(resources.items())
        )

    def received(self, uid: str, container: str) -> Mapping[str, Any]:
        """Return the container edits of its last start; empty if it never started."""
        run = self._runtime.get(uid, container)
        return {} if run is None else run.received

    def running(self) -> frozenset[tuple[str, str]]:
        """Return (pod UID, container) of every running container."""
        return self._runtime.running()

    def status(self, uid: str) -> Json | None:
        """Return the status that a pod should show, written or not."""
        return self.instance.workers.status(uid)

    def _held(self, pod: Pod, container: str, resource: str, ids: Iterable[str]) -> HeldDevices:
        return HeldDevices(
            pod.uid,
            pod.namespace,
            pod.name,
            container,
            pod.container(container).kind,
            resource,
            tuple(ids),
            self.received(pod.uid, container),
        )

    def _end(self, *, leave_sockets: bool) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.stop(leave_sockets=leave_sockets)
