"""What one kubelet knows from its start to its end: its pods, who holds what, its checkpoint.

Pure: no I/O, no lock, no thread. Admissions and starts are generators of the calls to make
(:mod:`simulator.kubelet.devices`). Whoever drives them, threads with real sockets or a test step
by step, holds one lock while a method runs or a generator advances, and gives it up during a call.
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
    """What the kubelet writes down (K27).

    Attributes:
        pods: pod UID -> container -> resource -> holding.
        registered: the resources whose plugins were registered, with their healthy devices.
    """

    pods: Mapping[str, PodHoldings] = field(default_factory=dict)
    registered: Mapping[str, Iterable[str]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class KnownPod:
    """A pod that this kubelet has come to.

    Attributes:
        admitting: its admission is under way.
        refused: it is over without having been started: rejected now, or by an earlier kubelet.
        ending: its containers are to end.
        ended: all of them have.
        removed: the API server has it no more.
        listed: ``List`` shows it although it is removed (K20).
        keeps: its devices count as its own although it is removed.
    """

    pod: Pod
    admitting: bool = False
    refused: bool = False
    ending: bool = False
    ended: bool = False
    removed: bool = False
    listed: bool = True
    keeps: bool = True

    @property
    def over(self) -> bool:
        """Whether nothing of it runs or ever will."""
        return self.refused or self.ended


class KubeletState:
    """One life of a kubelet.

    Args:
        devices: its device manager.
        random: the order of pods of one second, and of what ``List`` shows.
        active_pods_only: ``List`` without pods that are over (1.34 and newer), or with all that
            the API server still has (K8).
        overtaken_writes: how likely a write of the checkpoint for a plugin's list is overtaken
            by the next one, and comes after it (K33).
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

    def begin(
        self, checkpoint: KubeletCheckpoint | None, running: frozenset[tuple[str, str]], now: float
    ) -> None:
        """Take over what the kubelet before left (K11, K31).

        Args:
            checkpoint: what it has written down, ``None`` where there is no such file.
            running: (pod UID, container) of what the runtime says is running.
            now: monotonic seconds.
        """
        self.devices.running_before = running
        self.checkpoint = checkpoint
        if checkpoint is not None:
            self.devices.restore(checkpoint.pods, checkpoint.registered, now)

    # --- the checkpoint -------------------------------------------------------------------

    def advertised(self, resource: str, devices: Iterable[Device]) -> None:
        """Take a plugin's list of devices, and write it down (K28), in mid-admission too (K30)."""
        self.devices.advertised(resource, devices)
        if self._late is None and self.devices.beside.random() < self._overtaken_writes:
            self._late = self._gathered()
        else:
            self.write()

    def write(self) -> None:
        """Write the checkpoint; a writer that this one overtakes writes after it (K33)."""
        self.checkpoint = self._late or self._gathered()
        self._late = None

    @property
    def overtaken(self) -> bool:
        """Whether the next write overtakes one."""
        return self._late is not None

    def _gathered(self) -> KubeletCheckpoint:
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
        """Come to a pod: ``List`` shows it from now on (K3), and its containers get devices.

        One that is to end, or is over, is known and gets nothing.

        Raises:
            AdmissionFailure: it is refused, see :func:`simulator.kubelet.admission.status_of`.
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
            known.refused = True
            raise
        finally:
            known.admitting = False

    def all_admitted(self) -> None:
        """Record that the first batch is through: pods that are not known are gone from now on."""
        self.devices.sources_ready = True

    def update(self, pod: Pod) -> None:
        """Take a pod as the API server has it now."""
        known = self.pods.setdefault(pod.uid, KnownPod(pod))
        known.pod = pod
        known.refused |= pod.phase in TERMINAL_PHASES and not known.ending and not known.ended
        known.ending |= pod.deleting

    def remove(self, uid: str, *, listed: bool = True, keeps: bool = True) -> None:
        """See that the API server has a pod no more; see :class:`KnownPod` for what it leaves."""
        known = self.pods.get(uid)
        if known is None:
            return
        known.removed = known.ending = True
        known.listed, known.keeps = listed, keeps
        if known.over:
            del self.pods[uid]

    def end(self, uid: str) -> None:
        """Record that all containers of a pod have ended."""
        known = self.pods.get(uid)
        if known is None:
            return
        known.ending = known.ended = True
        if known.removed:
            del self.pods[uid]

    # --- what others ask ------------------------------------------------------------------

    def active(self) -> frozenset[str]:
        """``GetActivePods``: the UIDs of the pods that may hold devices."""
        return frozenset(
            uid for uid, each in self.pods.items() if not each.over and each.keeps and each.listed
        )

    def listed(self) -> list[KnownPod]:
        """Return the pods that ``List`` shows (K8, K20)."""
        return [
            each
            for each in self.pods.values()
            if each.listed and not (each.over and self._active_pods_only)
        ]

    def list_pods(self) -> list[tuple[Pod, PodHoldings]]:
        """``List``: frees what pods held that are over, then tells who holds what (K15)."""
        self.devices.update_allocated(self.active())
        return [(each.pod, snapshot(self.devices.pods, each.pod.uid)) for each in self.listed()]

    def active_holdings(self) -> list[tuple[Pod, PodHoldings]]:
        """Return what the pods that are alive hold."""
        active = self.active()
        return [
            (self.pods[uid].pod, snapshot(self.devices.pods, uid))
            for uid in self.devices.pods
            if uid in active
        ]


def snapshot(holdings: Mapping[str, PodHoldings], uid: str) -> PodHoldings:
    """Copy what a pod holds, so that it can be read without the lock."""
    return {name: dict(resources) for name, resources in holdings.get(uid, {}).items()}
