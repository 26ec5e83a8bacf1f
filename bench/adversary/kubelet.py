"""The kubelet: which pods there are, in which state, and what ``List`` shows of them."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from agent.allocator.interfaces import ListedContainer, ListedPod
from agent.errors import Unavailable
from bench.adversary.pods import Container, Pod
from contract.demand import ContainerKind
from simulator.kubelet.errors import AdmissionFailure, Rejected

if TYPE_CHECKING:
    from bench.adversary.world import World


class KubeletDied(Exception):
    """It has, in the middle of something."""


class State(Enum):
    """How far a pod is."""

    ADMITTING = auto()
    STARTING = auto()
    RUNNING = auto()
    REJECTED = auto()
    ENDED = auto()
    ZOMBIE = auto()
    """Deleted by force: the API has forgotten it, its containers still end (K20)."""


_INACTIVE = frozenset({State.REJECTED, State.ENDED})


@dataclass(slots=True, eq=False)
class Known:
    """A pod that this kubelet has come to.

    Attributes:
        to_start: its containers that do not run yet, in order.
        keeps: a zombie that holds its devices until it has ended, or frees them at once.
        removed: it was deleted by force while it was being admitted.
    """

    pod: Pod
    state: State
    to_start: list[Container]
    keeps: bool = True
    removed: bool = False


class Kubelet:
    """One kubelet, life after life."""

    def __init__(self, world: "World", *, active_only: bool) -> None:
        """Know no pod; *active_only*: ``List`` is in its new form (K8)."""
        self.world = world
        self.devices, self.api, self._random = world.devices, world.api, world.random
        self.active_only = active_only
        self.known: dict[str, Known] = {}
        self.queue: list[Pod] = []
        self.batch = 0  # how many of the queue are of the first list of this life
        self.statuses: list[tuple[Pod, str]] = []
        self.statics: list[Pod] = []
        self.blind = False
        self._shown: dict[str, ListedPod] = {}

    # --- List -----------------------------------------------------------------------------

    def active(self) -> Collection[str]:
        """``GetActivePods``: the UIDs of the pods that may hold devices."""
        return {
            uid
            for uid, each in self.known.items()
            if each.state not in _INACTIVE and (each.state is not State.ZOMBIE or each.keeps)
        }

    def listed(self) -> list[Known]:
        """Return the pods that ``List`` shows, in no order."""
        found = [
            each
            for _, each in sorted(self.known.items())
            if each.state not in _INACTIVE or not self.active_only
        ]
        return self._random.sample(found, len(found))

    def untold(self) -> set[str]:
        """Return the UIDs of listed pods that ended or were rejected, which nobody was told."""
        return {
            uid
            for each in self.listed()
            if each.state in _INACTIVE and each.pod.phase not in ("Failed", "Succeeded")
            for uid in each.pod.uids
        }

    def look(self) -> tuple[ListedPod, ...]:
        """``List``, asked by anybody."""
        listed = self.listed()
        self.devices.core.update_allocated(self.active())
        return tuple(self._entry(each.pod) for each in listed)

    def list(self, *, within: float) -> tuple[ListedPod, ...]:
        """``List``, asked by the agent."""
        self.world.strike("list", self.world.call)
        if self.blind or within <= 0:
            raise Unavailable("PodResources: away")
        return self.look()

    def _entry(self, pod: Pod) -> ListedPod:
        entry = ListedPod(
            *pod.key,
            tuple(
                ListedContainer(each.name, dict(self.devices.of(pod.uid, each.name)))
                for each in pod.containers
                if each.kind is not ContainerKind.INIT
            ),
        )
        # As the agent's client does: an entry that has not changed is the same object again.
        if self._shown.get(pod.uid) != entry:
            self._shown[pod.uid] = entry
        return self._shown[pod.uid]

    # --- admitting ------------------------------------------------------------------------

    def bind(self, pod: Pod) -> None:
        """See a pod that was bound here."""
        self.queue.append(pod)

    def admit_next(self) -> None:
        """Admit the pod that is next, all of its containers.

        Raises:
            KubeletDied: by what happens in a call.
        """
        pod = self.queue.pop(0)
        self.batch = max(self.batch - 1, 0)
        if pod.phase in ("Failed", "Succeeded"):
            self.known[pod.uid] = Known(pod, State.ENDED, [])
        elif pod.deleting:  # never admitted, or not again; what ran is ended
            known = self.known[pod.uid] = Known(pod, State.RUNNING, [])
            self.end(known)
        else:
            self._admit(pod)
        if not self.batch:
            self.devices.core.sources_ready = True

    def _admit(self, pod: Pod) -> None:
        runs = all(
            (pod.uid, each.name) in self.devices.core.running_before for each in pod.containers
        )
        known = self.known[pod.uid] = Known(pod, State.ADMITTING, list(pod.containers))
        try:
            if pod.refused_before and not runs:
                raise Rejected("NodeAffinity", "no")
            for container in pod.containers:
                self.devices.allocate(pod, container, self.world)
            if pod.refused_after and not runs:
                raise Rejected("NodeAffinity", "no")
        except AdmissionFailure:
            known.state = State.REJECTED
            self.statuses.append((pod, "Failed"))
        else:
            known.state = State.RUNNING if runs else State.STARTING
            known.to_start = [] if runs else list(pod.containers)
        if known.removed:
            self._removed(known)

    # --- what becomes of pods -------------------------------------------------------------

    def started(self, known: Known) -> None:
        """Record that the next container of a pod runs."""
        known.to_start.pop(0)
        if not known.to_start:
            known.state = State.RUNNING
            self.statuses.append((known.pod, "Running"))

    def end(self, known: Known) -> None:
        """Record that all containers of a pod have ended."""
        if known.state is State.ZOMBIE:
            del self.known[known.pod.uid]
        else:
            known.state = State.ENDED
            if known.pod.deleting:
                self.statuses = [each for each in self.statuses if each[0] is not known.pod]
                self.removed(known.pod)
                self.api.remove(known.pod)
            else:
                self.statuses.append((known.pod, "Succeeded"))

    def removed(self, pod: Pod) -> None:
        """See that the API server no longer has a pod that ended."""
        self._unqueue(pod)
        known = self.known.get(pod.uid)
        if known is not None and known.state in _INACTIVE:
            del self.known[pod.uid]

    def deleted_by_force(self, pod: Pod, *, keeps: bool) -> None:
        """See that the API server has a pod no more (K20)."""
        self._unqueue(pod)
        known = self.known.get(pod.uid)
        if known is None:
            return
        known.keeps = keeps
        if known.state is State.ADMITTING:
            known.removed = True
        else:
            self._removed(known)

    def _unqueue(self, pod: Pod) -> None:
        if pod in self.queue:
            at = self.queue.index(pod)
            self.batch -= at < self.batch
            self.queue.remove(pod)

    def _removed(self, known: Known) -> None:
        self.statuses = [each for each in self.statuses if each[0] is not known.pod]
        if known.state in _INACTIVE:
            del self.known[known.pod.uid]
        else:
            known.state = State.ZOMBIE

    def write_statuses(self, count: int) -> None:
        """Report the API server of so many changes, the oldest first."""
        while self.statuses and count > 0 and not self.api.away:
            pod, phase = self.statuses.pop(0)
            count -= 1
            if self.api.has(pod) and pod.phase not in ("Failed", "Succeeded"):
                pod.phase = phase
                self.api.changed(pod)

    # --- lives ----------------------------------------------------------------------------

    def restart(self) -> None:
        """Die and come up again; the plugin has to register anew."""
        running = [
            (each.pod.uid, container.name)
            for each in self.known.values()
            if each.state in (State.STARTING, State.RUNNING)
            for container in each.pod.containers
            if container not in each.to_start
        ]
        self.devices.restart(running)
        self.known.clear()
        self.statuses.clear()
        pods = [each for each in self.api.pods() if not each.static]
        self._random.shuffle(pods)
        pods.sort(key=lambda each: each.number // 4)  # by creation second
        self.queue = [*self.statics, *pods]
        self.batch = len(self.queue)
        self.devices.core.sources_ready = not self.batch
