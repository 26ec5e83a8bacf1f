"""A kubelet to start, stop, kill, restart and ask: what users of this package hold."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import ContainerKind
from simulator.client import ApiClient, Json
from simulator.kubelet.dice import dice
from simulator.kubelet.incarnation import Incarnation
from simulator.kubelet.pods import Pod, parse_pod
from simulator.kubelet.runtime import SimulatedRuntime
from simulator.kubelet.settings import Settings
from simulator.kubelet.source import Op, PodBatch
from simulator.kubelet.staticpods import static_pod
from simulator.kubelet.trace import Trace


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What one container of a pod that is alive holds of one resource.

    Attributes:
        received: what the container was given at its last start (envs, mounts, devices,
            annotations, cdi_devices, conflicts); empty before that.
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
    """The kubelet of one node, over all its restarts.

    Args:
        api: the API server; ``None`` when pods are only delivered by
            hand (:meth:`add_pods`) and nobody is told of statuses.
    """

    def __init__(self, settings: Settings, api: ApiClient | None = None) -> None:
        self.settings = settings
        self._api = api
        self.trace = Trace(settings.trace_path)
        self._runtime = SimulatedRuntime(settings.root_dir / "containers")
        self._lives = 0
        self._life: Incarnation | None = None
        self._static: dict[str, Pod] = {}

    def start(self) -> None:
        """Begin; sockets and checkpoint are taken over as a new process would (K11).

        Raises:
            RuntimeError: it is running.
            OSError: a socket cannot be made.
        """
        if self._life is not None:
            raise RuntimeError("the kubelet is running already")
        self._lives += 1
        random = dice(self.settings.seed, self._lives)
        life = Incarnation(self.settings, self._api, self._runtime, self.trace, random)
        self._life = life
        life.start()
        if self._static:
            life.deliver(PodBatch(Op.PUT, tuple(self._static.values())))

    def stop(self) -> None:
        """End in good order: containers keep running, sockets are removed."""
        self._end(leave_sockets=False)

    def kill(self) -> None:
        """End as by SIGKILL: nothing more is written, stale sockets stay."""
        self._end(leave_sockets=True)

    def restart(self) -> None:
        """Kill and start again."""
        self.kill()
        self.start()

    def reboot(self) -> None:
        """End every container too, and start again (the agent's sockets are stale then)."""
        self.kill()
        self._runtime.reboot()
        self.start()

    @property
    def crashed(self) -> bool:
        """Whether a hook has let the kubelet die; :meth:`kill` then clears up."""
        return self._life is not None and self._life.stopping.is_set()

    @property
    def life(self) -> Incarnation:
        """What runs now.

        Raises:
            RuntimeError: nothing does.
        """
        if self._life is None:
            raise RuntimeError("the kubelet is not running")
        return self._life

    # Pods by hand

    def add_pods(self, *objects: Json) -> None:
        """Deliver new pods, or newer forms of pods, as one batch.

        Without an API server the first batch after a start stands for the first list: a pod
        that is not in it is gone.
        """
        self.life.deliver(PodBatch(Op.PUT, tuple(parse_pod(each) for each in objects)))

    def remove_pods(self, *objects: Json) -> None:
        """Deliver that the API server has these pods no more."""
        self.life.deliver(PodBatch(Op.DROP, tuple(parse_pod(each) for each in objects)))

    def add_static_pod(self, manifest: Json) -> str:
        """Run a pod from a manifest on the node; the API server gets no mirror of it.

        Args:
            manifest: a pod; its name gets the node's name appended.

        Returns:
            The pod's UID.

        Raises:
            InvalidPod: the manifest is no pod.
        """
        pod = static_pod(manifest, self.settings.node_name)
        self._static[pod.uid] = pod
        self.life.deliver(PodBatch(Op.PUT, (pod,)))
        return pod.uid

    def restart_container(self, namespace: str, name: str, container: str) -> None:
        """Let a container crash and be started again (K12).

        Raises:
            KeyError: there is no such pod.
        """
        pod = self.life.find(f"{namespace}/{name}")
        if pod is None:
            raise KeyError(f"{namespace}/{name}")
        self.life.workers.restart(pod.uid, container)

    # What is so

    def idle(self) -> bool:
        """Return whether no delivered pod waits for admission."""
        return self.life.idle()

    def capacity(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (capacity, allocatable) of extended resources, as the node reports them."""
        return self.life.manager.counts()

    def record(self) -> tuple[HeldDevices, ...]:
        """Return the kubelet's own truth: who holds what, of the pods that are alive."""
        return tuple(
            self._held(pod, name, resource, holding.ids)
            for pod, containers in sorted(
                self.life.manager.active_holdings(), key=lambda each: each[0].uid
            )
            for name, resources in sorted(containers.items())
            for resource, holding in sorted(resources.items())
        )

    def received(self, uid: str, container: str) -> Mapping[str, Any]:
        """Return what a container received at its last start; empty when it never started."""
        run = self._runtime.get(uid, container)
        return {} if run is None else run.received

    def running(self) -> frozenset[tuple[str, str]]:
        """Return (pod UID, container) of every container that runs."""
        return self._runtime.running()

    def status(self, uid: str) -> Json | None:
        """Return the status the kubelet wants a pod to show, written or not."""
        return self.life.workers.status(uid)

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
        life, self._life = self._life, None
        if life is not None:
            life.stop(leave_sockets=leave_sockets)
