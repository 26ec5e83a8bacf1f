"""The outcomes of assignments: allocation annotations, and the files of enforcement.

Containers are prepared one after the other; files that are made for one are not removed before its
slots are assigned. The state's lock is not held meanwhile.
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
    needs_annotation,
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
    """Passes changed allocations to the annotation writer. Called with the state's lock held."""

    state: NodeState
    table: DeviceTable
    writer: AnnotationWriter

    def publish_all(self) -> None:
        """Publish the allocations of all pods that the API shows, if complete and changed."""
        for info in self.state.known.shown:
            if info.demand and not info.terminal:
                self.publish(info)

    def publish(self, info: PodInfo | None) -> None:
        """Publish a pod's allocations, if they are complete and its annotation differs."""
        if info is None or not self.state.known.is_shown(kubelet_uid(info)):
            return  # the API does not show the pod
        held = self.state.snapshot.containers(info.id)
        if not held:
            return
        try:
            found = allocations_of(
                held, self.table, info, evidence=partial(self.state.find_evidence, info.id)
            )
        except GrantError:
            return  # it holds slots of a card that this node no longer has
        if found and needs_annotation(found, info.annotated):
            self.writer.put(info, found)


class Enforcer(Protocol):
    """Enforces the limits of containers; each module of :mod:`agent.enforcement` has one."""

    def prepare_allocation(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant
    ) -> ContainerEdits:
        """Return the edits that an ``Allocate`` response needs, and make the files that they mount.

        The edits depend only on the IDs; *ref* is the container as far as it is known. Called
        before the assignment, and never twice at the same time.

        Raises:
            EnforcementError: the files cannot be made; nothing is assigned, the pod is refused.
        """
        ...

    def prepare_start(self, ids: frozenset[str], entitlement: Entitlement | None) -> None:
        """Prepare the container that is about to start with the core slots *ids*.

        Missing files of ``prepare_allocation`` are made again (after a wiped disk). Called before
        every start, restarts included, and possibly several times at once.

        Args:
            ids: the core slots.
            entitlement: that of the starting container; ``None`` if it is not known.

        Raises:
            EnforcementError: the files cannot be made; the start is vetoed and retried.
        """
        ...

    def identify_starting(self, candidates: Sequence[Entitlement]) -> Entitlement:
        """Return the container that is about to start, of several with the same core slots.

        The slots of ordinary init containers are reusable (fact K7), and ``PreStartContainer`` has
        only the slots.

        Args:
            candidates: containers of one pod in the order in which they start; not empty.
        """
        ...

    def prune(self, pods: Collection[PodId]) -> None:
        """Remove the files of all pods except *pods*."""
        ...


class EnforcementCoordinator:
    """Calls the enforcer with the data of the snapshot."""

    def __init__(
        self,
        *,
        enforcer: Enforcer,
        state: NodeState,
        table: DeviceTable,
        observer: KubeletObserver,
    ) -> None:
        """Coordinate an enforcer for the node of *state*."""
        self._enforcer = enforcer
        self._state = state
        self._table = table
        self._observer = observer
        self._preparing = threading.Lock()

    @contextmanager
    def preparing(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant, *, unlimited: bool = False
    ) -> Iterator[ContainerEdits]:
        """Prepare the files of a container; in the ``with`` block they are not removed.

        The caller assigns the slots in the block.

        Args:
            ref: the container.
            ids: the slots that it gets.
            grant: the same as a grant.
            unlimited: prepare nothing, since these slots set no limit.

        Raises:
            EnforcementError: the files cannot be made.
        """
        if unlimited:
            yield ContainerEdits()
            return
        with self._preparing:
            yield self._enforcer.prepare_allocation(ref, ids, grant)

    def start(
        self, pod: PodId, info: PodInfo | None, held: Containers, ids: frozenset[str]
    ) -> None:
        """Prepare the container that is about to start with these core slots.

        Args:
            pod: its pod.
            info: the pod in the API.
            held: the slots of the pod's containers; several may hold these slots (K7).
            ids: the core slots.

        Raises:
            EnforcementError: its files cannot be made.
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
        """Return the entitlement of a running container; ``None`` if it holds nothing here.

        Args:
            runtime_uid: the UID of its pod in the runtime; unlike a name it is never reused.
            container: its name.
        """
        with self._state as state:
            is_known = any(each.uid == runtime_uid for each in state.snapshot.pods)
        if not is_known:
            self._observer.observe()
        with self._state as state:
            snapshot, known = state.snapshot, state.known
        # It is one pod, unless a UID was forged.
        pods = [each for each in snapshot.pods if each.uid == runtime_uid]
        for pod in sorted(pods, key=lambda each: each.id):
            slots, info = pod.held.get(container, {}), known.find(pod.id)
            about = entitlement(slots, self._table, ContainerRef(pod.id, container), info)
            if about is not None:
                return about
        return None

    def sweep(self) -> None:
        """Remove the files of pods that neither the API nor the snapshot nor ``List`` shows.

        While ``List`` is unavailable nothing is removed.
        """
        entries = self._observer.read_list()
        if entries is None:
            return
        listed = {PodId(each.namespace, each.name, "") for each in entries}
        with self._preparing:
            with self._state as state:
                known = {each.id for each in state.known.shown}
                holders = {each.id for each in state.snapshot.pods if each.held}
            self._enforcer.prune(known | holders | listed)
