"""Tell the enforcer what to make for a container, what a container may use, what to remove.

Containers are prepared one after the other; what is made on disk for one is not removed before
its places are assigned. The state's lock is not held meanwhile.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agent.allocator.model.answer import Answer
from agent.allocator.model.containers import ContainerRef, Containers
from agent.allocator.model.entitlement import Entitlement, entitlement
from agent.allocator.model.grant import Grant
from agent.allocator.model.ports import Enforcer, RecordSource
from agent.allocator.model.tickets import DeviceTable
from agent.allocator.node_state import NodeState
from agent.allocator.observer import LIST_WITHIN, Observer
from agent.errors import Unavailable
from contract.resource import Resource
from placement.pods import PodId, PodInfo


class EnforcementCoordinator:
    """Puts an enforcer to work on what the record says."""

    def __init__(
        self,
        *,
        enforcer: Enforcer,
        state: NodeState,
        table: DeviceTable,
        observer: Observer,
        record: RecordSource,
    ) -> None:
        """Work on what *state* remembers."""
        self._enforcer = enforcer
        self._state = state
        self._table = table
        self._observer = observer
        self._record = record
        self._making = threading.Lock()

    @contextmanager
    def making(
        self, ref: ContainerRef, ids: frozenset[str], grant: Grant, *, unlimited: bool = False
    ) -> Iterator[Answer]:
        """Make what a container will find; inside, it is assigned, and nothing is swept away.

        Args:
            ref: the container.
            ids: the places that it is given.
            grant: what they stand for.
            unlimited: make nothing, since these places limit nothing.

        Raises:
            EnforcementError: it cannot be made.
        """
        if unlimited:
            yield Answer()
            return
        with self._making:
            yield self._enforcer.answer(ref, ids, grant)

    def start(
        self, pod: PodId, view: PodInfo | None, held: Containers, ids: frozenset[str]
    ) -> None:
        """Make ready for the container that is about to start with these core places.

        Args:
            pod: its pod.
            view: what the API shows of the pod.
            held: what the containers of the pod hold; several may hold these places (K7).
            ids: the core places.

        Raises:
            EnforcementError: it cannot be made ready.
        """
        order = [each.name for each in view.demand.containers] if view is not None else sorted(held)
        found = [
            entitlement(held[name], self._table, ContainerRef(pod, name), view)
            for name in order
            if held.get(name, {}).get(Resource.CORE) == ids
        ]
        candidates = [each for each in found if each is not None]
        about = self._enforcer.which(candidates) if len(candidates) > 1 else None
        about = about or next(iter(candidates), None)
        self._enforcer.start(ids, about)

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here.

        Args:
            pod_uid: its pod, by what cannot come back as a name can.
            container: its name.
        """
        if not self._known(pod_uid):
            self._observer.look()
        with self._state:
            for pod in self._pods(pod_uid):
                about = self._entitlement(ContainerRef(pod, container))
                if about is not None:
                    return about
        return None

    def _known(self, pod_uid: str) -> bool:
        with self._state:
            return bool(self._pods(pod_uid))

    def sweep(self) -> None:
        """Release what was made for pods that are gone.

        Kept is what the API shows, what the record has, and what the kubelet's record shows; while
        that cannot be had, everything is.
        """
        try:
            entries = self._record.list(within=LIST_WITHIN)
        except Unavailable:
            return
        listed = {PodId(each.namespace, each.name, "") for each in entries}
        with self._making:
            with self._state:
                known = {each.id for each in self._state.pods.shown}
                holders = {each.id for each in self._state.record.pods if each.held}
            self._enforcer.keep(known | holders | listed)

    def _pods(self, runtime_uid: str) -> list[PodId]:
        """Return the pods that the runtime may know by a UID: one, unless somebody plays tricks."""
        return sorted(each.id for each in self._state.record.pods if each.uid == runtime_uid)

    def _entitlement(self, ref: ContainerRef) -> Entitlement | None:
        record = self._state.record
        places = record.containers(ref.pod).get(ref.container, {})
        return entitlement(places, self._table, ref, self._state.pods.view(ref.pod))
