"""What enforcement needs of the allocator: who may use what, what to make and what to sweep away.

One pod after the other is given something; what is made on disk for it is not swept away
before it is assigned. The state's lock is not held while something is made.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from agent.allocator.model.answer import Answer
from agent.allocator.model.entitlement import Entitlement, entitlement, entitlement_by_annotation
from agent.allocator.model.grant import Grant
from agent.allocator.model.ledger import ContainerRef
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.ports import Enforcer, RecordSource
from agent.allocator.model.tickets import DeviceTable, card_of
from agent.allocator.node_state import NodeState
from agent.allocator.resolver.observer import WITNESS_WITHIN
from agent.allocator.resolver.resolver import Resolver
from agent.errors import Unavailable
from contract.allocation import Allocation, Evidence
from contract.demand import ContainerKind
from contract.resource import Resource


class EnforcementCoordinator:
    """Puts an enforcer to work on what the ledger says."""

    def __init__(
        self,
        *,
        enforcer: Enforcer | None,
        state: NodeState,
        table: DeviceTable,
        resolver: Resolver,
        record: RecordSource,
    ) -> None:
        """Work on what *state* remembers."""
        self._enforcer = enforcer
        self._state = state
        self._table = table
        self._resolver = resolver
        self._record = record
        self._making = threading.Lock()
        # Of init containers whose pods have no annotation of them: what they must have got.
        self._deduced: dict[ContainerRef, Entitlement] = {}

    @contextmanager
    def making(self, ref: ContainerRef, ids: frozenset[str], grant: Grant) -> Iterator[Answer]:
        """Make what a container will find; inside, it is assigned, and nothing is swept away.

        Raises:
            EnforcementError: it cannot be made.
        """
        if self._enforcer is None:
            yield Answer()
            return
        with self._making:
            yield self._enforcer.answer(ref, ids, grant)

    def start(self, ref: ContainerRef | None, ids: frozenset[str]) -> None:
        """Make ready for the container that is about to start with these core places.

        Where nothing is proven (ordinary init containers are not in the kubelet's record) it is a
        container that they were given to, if those are of one pod.

        Raises:
            EnforcementError: it cannot be made ready.
        """
        if self._enforcer is None:
            return
        with self._state:
            candidates = self._candidates(ref, ids)
        about = self._enforcer.which(candidates) if len(candidates) > 1 else None
        about = about or next(iter(candidates), None)
        if about is not None and not about.core_ids:
            with self._state:
                self._deduced[about.ref] = about
        self._enforcer.start(ids, about)

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Return what a running container may use; ``None`` when it holds nothing here.

        Args:
            pod_uid: its pod, by what cannot come back as a name can.
            container: its name.
        """
        with self._state:
            self._resolver.update()
            for pod in self._pods(pod_uid):
                ref = ContainerRef(pod, container)
                about = self._entitlement(ref) or self._annotated(ref) or self._deduced.get(ref)
                if about is not None:
                    return about
        return None

    def sweep(self) -> None:
        """Release what was made for pods that are gone.

        Kept is what the API shows, what the ledger has, and what the kubelet's record shows; while
        that cannot be had, everything is.
        """
        if self._enforcer is None:
            return
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable:
            return
        listed = {PodId(each.namespace, each.name, "") for each in snapshot.pods}
        with self._making:
            with self._state:
                known = self._resolver.update().known
                holders = set(self._state.ledger.pods)
                for ref in [each for each in self._deduced if each.pod not in known | holders]:
                    del self._deduced[ref]
            self._enforcer.keep(known | holders | listed)

    def _pods(self, runtime_uid: str) -> list[PodId]:
        """Return the pods that the runtime may know by a UID: one, unless somebody plays tricks."""
        known = self._state.pod_index.by_runtime_uid(runtime_uid)
        holders = set(self._state.ledger.pods)
        return sorted({*known, *(pod for pod in holders if pod.uid == runtime_uid)})

    def _candidates(self, ref: ContainerRef | None, ids: frozenset[str]) -> list[Entitlement]:
        """Return who may be starting with these core places, in the order in which they start."""
        holders = self._state.ledger.find(Resource.CORE, ids)
        pods = {ref.pod} if ref is not None else {each.pod for each in holders}
        if not pods:  # an init container's, handed on to one that has more
            owners = {self._state.ledger.owners.get((Resource.CORE, each)) for each in ids}
            pods = {each for each in owners if each is not None} if None not in owners else set()
        if len(pods) != 1:
            return []
        (pod,) = pods
        view = self._state.pod_index.view(pod)
        if view is None:
            names = [each.container for each in holders if each.pod == pod]
        else:
            names = [each.name for each in view.demand.containers]
        cards = {card_of(each) for each in ids}
        found = []
        for each in (ContainerRef(pod, name) for name in names):
            about = self._entitlement(each)
            if about is None:  # an init container that an earlier agent served may have had them
                about = self._annotated(each) or self._deduce(each, cards)
                if about is None or about.cores.places != len(ids) or cards != {*about.cores.cards}:
                    continue
            elif about.core_ids != ids:
                continue
            found.append(about)
        return found

    def _deduce(self, ref: ContainerRef, cards: set[str]) -> Entitlement | None:
        """Return what an init container must have got on *cards*, if no annotation says it.

        An agent that was killed may not have come to write it, and ``List`` never shows it (K4).
        """
        view = self._state.pod_index.view(ref.pod)
        container = view.demand.of(ref.container) if view is not None else None
        if view is None or container is None or container.kind is not ContainerKind.INIT:
            return None
        if view.running or ref.container in view.annotated:
            return None
        demand, ordered = container.demand, tuple(self._table.in_order(cards))
        made = Allocation(ordered, demand.cores, demand.memory, Evidence.ORDER)
        return entitlement_by_annotation(
            self._table, ref, replace(view, annotated={ref.container: made})
        )

    def _annotated(self, ref: ContainerRef) -> Entitlement | None:
        view = self._state.pod_index.view(ref.pod)
        container = view.demand.of(ref.container) if view is not None else None
        if view is None or container is None or container.kind is not ContainerKind.INIT:
            return None
        return entitlement_by_annotation(self._table, ref, view)

    def _entitlement(self, ref: ContainerRef) -> Entitlement | None:
        view = self._state.pod_index.view(ref.pod)
        return entitlement(self._state.ledger, self._table, ref, view)
