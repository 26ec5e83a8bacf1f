"""What comes of assignments: the pods' annotations, and what enforcement makes and removes.

Containers are prepared one after the other; what is made on disk for one is not removed before
its slots are assigned. The state's lock is not held meanwhile.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from agent.allocator.grants import (
    ContainerEdits,
    Entitlement,
    Grant,
    allocations_of,
    entitlement,
    is_news,
)
from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import AnnotationWriter, ContainerRef, Containers
from agent.allocator.node_state import NodeState
from agent.allocator.observer import KubeletObserver
from agent.allocator.slots import DeviceTable
from agent.errors import GrantError
from contract.resource import Resource
from placement.pods import PodId, PodInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPublisher:
    """Hand what is news to the annotation writer. Called with the state's lock held."""

    state: NodeState
    table: DeviceTable
    writer: AnnotationWriter

    def publish_all(self) -> None:
        """Hand on what is complete and not shown yet, of any pod that the API shows."""
        for info in self.state.known.shown:
            if info.demand and not info.terminal:
                self.publish(info)

    def publish(self, info: PodInfo | None) -> None:
        """Hand on what a pod got, once that is complete and its annotation does not show it."""
        if info is None or not self.state.known.is_shown(kubelet_uid(info)):
            return  # there is no pod to write to
        held = self.state.snapshot.containers(info.id)
        if not held:
            return
        try:
            found = allocations_of(
                held, self.table, info, evidence=partial(self.state.find_evidence, info.id)
            )
        except GrantError:
            return  # it holds slots of a card that this node no longer has
        if found and is_news(found, info.annotated):
            self.writer.put(info, found)


class Enforcer(Protocol):
    """What holds containers to their limits; one module of :mod:`agent.enforcement` each."""

    def prepare_allocation(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant
    ) -> ContainerEdits:
        """Return what an ``Allocate`` response must carry, and make on disk what it names.

        The response follows from the IDs alone; *ref* is for whom it is made as far as is
        known yet. Called before anything is assigned, and never twice at once.

        Raises:
            EnforcementError: it cannot be made; nothing is assigned, the pod is refused.
        """
        ...

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Make ready for the container that is about to start with the core slots *ids*.

        What ``prepare_allocation`` made is made again where it is missing (a wiped disk). Comes
        before every start, restarts included; several may come at once.

        Args:
            ids: core slots.
            entitlement: which container starts, and what it may use; ``None`` if not known.

        Raises:
            EnforcementError: it cannot be made; the start is vetoed and tried again.
        """
        ...

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Of several containers that hold the same core slots, return the one about to start.

        Ordinary init containers hand on theirs (fact K7), and ``PreStartContainer`` says no more
        than the slots.

        Args:
            candidates: containers of one pod in the order in which they start; not empty.
        """
        ...

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove what was made for pods other than these: they are gone."""
        ...


class EnforcementCoordinator:
    """Puts an enforcer to work on what the snapshot says."""

    def __init__(
        self,
        *,
        enforcer: Enforcer,
        state: NodeState,
        table: DeviceTable,
        observer: KubeletObserver,
    ) -> None:
        """Work on what *state* keeps."""
        self._enforcer = enforcer
        self._state = state
        self._table = table
        self._observer = observer
        self._making = threading.Lock()

    @contextmanager
    def making(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant, *, unlimited: bool = False
    ) -> Iterator[ContainerEdits]:
        """Make what a container will find; inside, it is assigned, and nothing is swept away.

        Args:
            ref: the container.
            ids: the slots that it is given.
            grant: what they stand for.
            unlimited: make nothing, since these slots limit nothing.

        Raises:
            EnforcementError: it cannot be made.
        """
        if unlimited:
            yield ContainerEdits()
            return
        with self._making:
            yield self._enforcer.prepare_allocation(ref, ids, grant)

    def start(
        self, pod: PodId, info: PodInfo | None, held: Containers, ids: frozenset[str]
    ) -> None:
        """Make ready for the container that is about to start with these core slots.

        Args:
            pod: its pod.
            info: what the API shows of the pod.
            held: what the containers of the pod hold; several may hold these slots (K7).
            ids: the core slots.

        Raises:
            EnforcementError: it cannot be made ready.
        """
        order = [each.name for each in info.demand.containers] if info is not None else sorted(held)
        found = [
            entitlement(held[name], self._table, ContainerRef(pod, name), info)
            for name in order
            if held.get(name, {}).get(Resource.CORE) == ids
        ]
        candidates = [each for each in found if each is not None]
        about = self._enforcer.identify_starting(candidates) if len(candidates) > 1 else None
        self._enforcer.prepare_start(ids, about or next(iter(candidates), None))

    def entitled(self, runtime_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here.

        Args:
            runtime_uid: its pod, by what cannot come back as a name can.
            container: its name.
        """
        with self._state as state:
            is_known = any(each.uid == runtime_uid for each in state.snapshot.pods)
        if not is_known:
            self._observer.observe()
        with self._state as state:
            snapshot, known = state.snapshot, state.known
        # One pod, unless a UID was forged.
        pods = [each for each in snapshot.pods if each.uid == runtime_uid]
        for pod in sorted(pods, key=lambda each: each.id):
            slots, info = pod.held.get(container, {}), known.find(pod.id)
            about = entitlement(slots, self._table, ContainerRef(pod.id, container), info)
            if about is not None:
                return about
        return None

    def sweep(self) -> None:
        """Release what was made for pods that are gone.

        Kept is what the API shows, what the snapshot has, and what ``List`` shows; while that
        cannot be had, everything is.
        """
        entries = self._observer.ask_list()
        if entries is None:
            return
        listed = {PodId(each.namespace, each.name, "") for each in entries}
        with self._making:
            with self._state as state:
                known = {each.id for each in state.known.shown}
                holders = {each.id for each in state.snapshot.pods if each.held}
            self._enforcer.prune(known | holders | listed)
