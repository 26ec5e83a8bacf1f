"""The container that was answered last, and what follows if it was a wrong guess.

A container's two resources are asked for one after the other (fact K1), so the next call often
shows whether the one before was settled for the right container.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.model.ports import DecisionLog
from agent.allocator.resolver.pod_index import PodIndex
from agent.allocator.resolver.resolve import Ask, Resolution, next_containers
from contract.allocation import Evidence
from contract.demand import ContainerDemand, ContainerKind
from contract.resource import Resource, count_of


class LastAnswer:
    """Remembers one container, and mends the ledger where it was not the one."""

    def __init__(self, ledger: Ledger, pod_index: PodIndex, decision_log: DecisionLog) -> None:
        """Start with none."""
        self._ledger = ledger
        self._pod_index = pod_index
        self._decision_log = decision_log
        self._last: ContainerRef | None = None

    def note(self, ref: ContainerRef | None) -> None:
        """Remember the container of the call that is being answered; ``None`` forgets it."""
        self._last = ref

    def guess(self) -> dict[Resource, Holding]:
        """Return what was answered last for a container that was guessed, and is not proven."""
        last = self._last
        if last is None or last not in self._ledger.pod_refs(last.pod):
            return {}
        if self._ledger.kind(last) is ContainerKind.INIT:
            return {}
        found = {resource: self._ledger.holding(last, resource) for resource in Resource}
        return {
            resource: held
            for resource, held in found.items()
            if held is not None and held.evidence is Evidence.ORDER and not held.proven
        }

    def disproved(
        self, guess: Mapping[Resource, Holding]
    ) -> tuple[PodId | None, dict[Resource, Holding]]:
        """Return what of a guess the ledger has with nobody by now, and whose it was."""
        last = self._last
        found = {
            resource: held
            for resource, held in guess.items()
            if last is not None
            and self._ledger.holding(last, resource) is None
            and not any((resource, each) in self._ledger.owners for each in held.ids)
        }
        return (last.pod if last is not None and found else None), found

    def transfer(self, guess: Mapping[Resource, Holding], resolution: Resolution) -> None:
        """Assign to the init container that is asking what was guessed to be another's."""
        container = resolution.container
        if container.kind is not ContainerKind.INIT:
            return
        ref = ContainerRef(resolution.pod, container.name)
        for resource, held in guess.items():
            if (
                count_of(container.demand, resource) == len(held.ids)
                and self._ledger.holding(ref, resource) is None
            ):
                self._ledger.assign(ref, container.kind, resource, held)

    def take_over(self, each: MatchedPod, offered: AbstractSet[tuple[Resource, str]]) -> None:
        """Assign to a pod what its init container was given last in the name of one before it.

        The API had not told yet that the name had come back. What the kubelet offers again was the
        one's before it, and is free.

        Args:
            each: a listed pod.
            offered: held places that the kubelet offers.
        """
        view, last = each.view, self._last
        if view is None or last is None or last.pod not in {old.id for old in each.earlier}:
            return
        container = view.demand.of(last.container)
        held = {resource: self._ledger.holding(last, resource) for resource in Resource}
        if (
            container is not None
            and container.kind is ContainerKind.INIT
            and all(
                one is None
                or (
                    len(one.ids) == count_of(container.demand, resource)
                    and all((resource, place) not in offered for place in one.ids)
                )
                for resource, one in held.items()
            )
        ):
            self._ledger.release_container(last)
            for resource, one in held.items():
                if one is not None:
                    own = ContainerRef(each.pod, last.container)
                    self._ledger.assign(own, container.kind, resource, one)

    def repair(self, ask: Ask, views: Sequence[PodView]) -> Resolution | None:
        """Without a witness, see whether the call before this was settled for the right container.

        If the one that was guessed cannot be asking this, another was meant that asks for both.

        Returns:
            That other one; ``None`` if the guess may stand.
        """
        last, view = self._last, self._pod_index.view(self._last.pod) if self._last else None
        container = view.demand.of(last.container) if last and view else None
        if last is None or container is None:
            return None
        held = self._ledger.holding(last, ask.resource.other)
        if held is None or self._ledger.holding(last, ask.resource) is not None:
            return None
        if count_of(container.demand, ask.resource) in (0, ask.size):
            return None  # it is asking, or has all it asks for
        shared = (
            self._ledger.holding(each, ask.resource.other)
            for each in self._ledger.pod_refs(last.pod)
            if each != last
        )
        if any(each is not None and not each.ids.isdisjoint(held.ids) for each in shared):
            return None  # handed on by an init container: nobody else can hold these (K7)
        both = {ask.resource: ask.size, ask.resource.other: len(held.ids)}
        meant = [
            (each.position, each.id, other)
            for each in views
            if not each.terminal
            for other in self._next_of(each)
            if all(count_of(other.demand, resource) == both[resource] for resource in Resource)
            and not any(self._served(each.id, other.name, resource) for resource in Resource)
        ]
        if not meant:
            return None
        _, pod, other = min(meant, key=lambda each: each[:2])
        ref = ContainerRef(pod, other.name)
        self._ledger.release(last, ask.resource.other)
        self._ledger.assign(ref, other.kind, ask.resource.other, held)
        self._decision_log.corrected(Correction(ask.resource.other, held.ids, last, ref))
        return Resolution(pod, other, Evidence.ORDER)

    def _next_of(self, view: PodView) -> list[ContainerDemand]:
        """Return the containers of a pod that may come next by the ledger."""

        def is_served(container: ContainerDemand, resource: Resource) -> bool:
            return self._served(view.id, container.name, resource)

        return next_containers(view.demand.containers, is_served)

    def _served(self, pod: PodId, container: str, resource: Resource) -> bool:
        return self._ledger.holding(ContainerRef(pod, container), resource) is not None
