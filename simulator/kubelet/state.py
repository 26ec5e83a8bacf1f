"""The state of one kubelet instance: its pods, their devices and the checkpoint.

Pure: no I/O, no lock, no thread. Admissions and starts are generators of the calls to make
(:mod:`simulator.kubelet.devices`). The caller (threads with real sockets, or a test step by step)
holds one lock while a method runs or a generator advances, and releases it during a call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from simulator.kubelet.admission import admit, in_order
from simulator.kubelet.devices import Devices, PodHoldings, Steps
from simulator.kubelet.errors import AdmissionFailure
from simulator.kubelet.numa import Device
from simulator.kubelet.pods import TERMINAL_PHASES, Pod


@dataclass(frozen=True, slots=True)
class KubeletCheckpoint:
    """The content of the kubelet's checkpoint (K27).

    Attributes:
        pods: pod UID -> container -> resource -> holding.
        registered: the resources whose plugins were registered, with their healthy devices.
    """

    pods: Mapping[str, PodHoldings] = field(default_factory=dict)
    registered: Mapping[str, Iterable[str]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class KnownPod:
    """A pod that this kubelet has begun to admit.

    Attributes:
        admitting: its admission is in progress.
        rejected: it has ended without a start: rejected now, or by an earlier kubelet.
        ending: its containers must end.
        ended: all of its containers have ended.
        removed: it is deleted from the API server.
        listed: ``List`` shows it although it is removed (K20).
        keeps: it holds its devices although it is removed.
    """

    pod: Pod
    admitting: bool = False
    rejected: bool = False
    ending: bool = False
    ended: bool = False
    removed: bool = False
    listed: bool = True
    keeps: bool = True

    @property
    def finished(self) -> bool:
        """Whether none of its containers runs or will run."""
        return self.rejected or self.ended


class KubeletState:
    """The state of one kubelet instance.

    Args:
        devices: its device manager.
        random: for the order of pods created in one second.
        active_pods_only: whether ``List`` shows only pods that have not ended (1.34 and newer), or
            all that the API server still has (K8).
        overtaken_writes: the probability that a checkpoint write for a plugin's device list is
            delayed until after the next write (K33).
    """

    def __init__(
        self,
        devices: Devices,
        *,
        random: Random,
        active_pods_only: bool = True,
        overtaken_writes: float = 0.0,
    ) -> None:
        self.devices = devices
        self.pods: dict[str, KnownPod] = {}
        self.checkpoint: KubeletCheckpoint | None = None
        self._random = random
        self._active_pods_only = active_pods_only
        self._overtaken_writes = overtaken_writes
        self._late: KubeletCheckpoint | None = None

    def restore(
        self, checkpoint: KubeletCheckpoint | None, running: frozenset[tuple[str, str]], now: float
    ) -> None:
        """Load the state that the kubelet before has left (K11, K31).

        Args:
            checkpoint: its checkpoint; ``None`` if there is no such file.
            running: (pod UID, container) of the containers running in the runtime.
            now: monotonic seconds.
        """
        self.devices.running_before = running
        self.checkpoint = checkpoint
        if checkpoint is not None:
            self.devices.restore(checkpoint.pods, checkpoint.registered, now)

    # --- the checkpoint -------------------------------------------------------------------

    def advertised(self, resource: str, devices: Iterable[Device]) -> None:
        """Store a plugin's device list and write the checkpoint (K28), also mid-admission (K30)."""
        self.devices.advertised(resource, devices)
        if self._late is None and self.devices.start_random.random() < self._overtaken_writes:
            self._late = self._build_checkpoint()
        else:
            self.write()

    def write(self) -> None:
        """Write the checkpoint; if an older write was delayed, that one wins (K33)."""
        self.checkpoint = self._late or self._build_checkpoint()
        self._late = None

    @property
    def overtaken(self) -> bool:
        """Whether a write is delayed until after the next one."""
        return self._late is not None

    def _build_checkpoint(self) -> KubeletCheckpoint:
        devices = self.devices
        return KubeletCheckpoint(
            {uid: snapshot(devices.pods, uid) for uid in devices.pods},
            {resource: tuple(ids) for resource, ids in devices.healthy.items()},
        )

    # --- pods -----------------------------------------------------------------------------

    def in_order(self, batch: Iterable[Pod]) -> list[Pod]:
        """Return a batch in the order in which it is admitted (K1)."""
        return in_order(batch, self._random)

    def admit(self, pod: Pod) -> Steps:
        """Admit a pod: ``List`` shows it from now on (K3), and its containers get devices.

        A pod that is being deleted or has ended is listed too, but gets no devices.

        Raises:
            AdmissionFailure: it is rejected, see :func:`simulator.kubelet.admission.status_of`.
        """
        known = self.pods.setdefault(pod.uid, KnownPod(pod))
        known.pod = pod
        known.ending |= pod.deleting or pod.phase in TERMINAL_PHASES
        if known.ending:
            return
        known.admitting = True
        try:
            yield from admit(pod, self.devices, self.active)
        except AdmissionFailure:
            known.rejected = True
            raise
        finally:
            known.admitting = False

    def end_first_batch(self) -> None:
        """Record that the first batch was admitted: from now on, unknown pods count as deleted."""
        self.devices.sources_ready = True

    def update(self, pod: Pod) -> None:
        """Update a pod from the API server."""
        known = self.pods.setdefault(pod.uid, KnownPod(pod))
        known.pod = pod
        known.rejected |= pod.phase in TERMINAL_PHASES and not known.ending and not known.ended
        known.ending |= pod.deleting

    def remove(self, uid: str, *, listed: bool = True, keeps: bool = True) -> None:
        """Record that a pod was deleted from the API server; the flags are :class:`KnownPod`'s."""
        known = self.pods.get(uid)
        if known is None:
            return
        known.removed = known.ending = True
        known.listed, known.keeps = listed, keeps
        if known.finished:
            del self.pods[uid]

    def end(self, uid: str) -> None:
        """Record that all containers of a pod have ended."""
        known = self.pods.get(uid)
        if known is None:
            return
        known.ending = known.ended = True
        if known.removed:
            del self.pods[uid]

    # --- queries --------------------------------------------------------------------------

    def active(self) -> frozenset[str]:
        """``GetActivePods``: the UIDs of the pods that may hold devices."""
        return frozenset(
            uid
            for uid, each in self.pods.items()
            if not each.finished and each.keeps and each.listed
        )

    def listed(self) -> list[KnownPod]:
        """Return the pods that ``List`` shows (K8, K20)."""
        return [
            each
            for each in self.pods.values()
            if each.listed and not (each.finished and self._active_pods_only)
        ]

    def list_pods(self) -> list[tuple[Pod, PodHoldings]]:
        """``List``: free the devices of ended pods, then return the pods with theirs (K15)."""
        self.devices.update_allocated(self.active())
        return [(each.pod, snapshot(self.devices.pods, each.pod.uid)) for each in self.listed()]

    def active_holdings(self) -> list[tuple[Pod, PodHoldings]]:
        """Return the active pods with their devices."""
        active = self.active()
        return [
            (self.pods[uid].pod, snapshot(self.devices.pods, uid))
            for uid in self.devices.pods
            if uid in active
        ]


def snapshot(holdings: Mapping[str, PodHoldings], uid: str) -> PodHoldings:
    """Copy the devices of a pod, to be read without the lock."""
    return {name: dict(resources) for name, resources in holdings.get(uid, {}).items()}
