"""Pods that have had one name after the other: whose is what was assigned by the name.

``List`` tells no UID, and a pod may be known by its name alone while the API is away. Pure but
for the ledger it is given.
"""

from agent.allocator.model.ledger import Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.resolver.pod_index import Observation, PodIndex
from agent.allocator.resolver.unseen_inits import is_unseen, name_unseen
from contract.resource import Resource, count_of


class SameNames:
    """Tells pods of one name apart."""

    def __init__(self, ledger: Ledger, pod_index: PodIndex) -> None:
        """Know of none."""
        self._ledger = ledger
        self._pod_index = pod_index
        # Pods that were found to be asking while another of their name was listed as well.
        self._told_apart: set[PodId] = set()
        # Pods whose entry may have been that of one before them, in the last observation.
        self._doubted: dict[PodId, frozenset[PodId]] = {}

    def tell_apart(self, pod: PodId) -> None:
        """Record that *pod* was found to be asking while another of its name was listed."""
        self._told_apart.add(pod)

    def adopt(self) -> None:
        """Assign to a pod's UID what was assigned to its name while the API was away.

        A pod that asks for something else than was assigned is another one of the same name. If
        the kubelet has not shown that one holding that either, it was guessed wrongly.
        """
        pods = {
            each.pod
            for each, _, _ in self._ledger.refs()
            if not each.pod.uid or is_unseen(each.container)
        }
        for pod in pods:
            view = self._pod_index.view(pod)
            if view is not None:
                name_unseen(self._ledger, view)
            if pod.uid:
                continue
            views = [each for each in self._pod_index.views_of(pod.key) if not each.terminal]
            fitting = {each.id for each in views if self._fits(each, pod)}
            if len(fitting) == 1:
                self._ledger.adopt_names(fitting)
            elif views and not fitting:
                self._ledger.release_unproven(pod)

    def _fits(self, view: PodView, nameless: PodId) -> bool:
        """Return whether *view* asks for what a pod known by its name alone holds."""
        for ref in self._ledger.pod_refs(nameless):
            if is_unseen(ref.container):
                continue
            container = view.demand.of(ref.container)
            for resource in Resource:
                held = self._ledger.holding(ref, resource)
                if held is None:
                    continue
                if container is None or count_of(container.demand, resource) != len(held.ids):
                    return False
        return True

    def confused(self, observation: Observation) -> tuple[PodId, PodId] | None:
        """Find a pod to which was assigned what its predecessor of the same name had been given.

        ``List`` tells no UID: a pod that is admitted after it has left the API is taken for the
        one that has its name by then. Once that one is listed as well, there are two entries, and
        the one with the places is the older pod's.
        """
        doubted = [each for each in observation.moving if not each.identified]
        self._told_apart &= observation.pods
        for older in doubted:
            for newer in observation.moving:
                if (
                    newer.listed.key == older.listed.key
                    and newer.pod != older.pod
                    and newer.pod not in self._told_apart
                    and newer.view is not None
                    and older.view is not None
                    and not self._pod_index.has_departed(newer.pod)
                    and older.view.position < newer.view.position
                    and any(newer.listed.each_held())
                    and not any(older.listed.each_held())
                    and newer.listed.may_be(older.view)
                    and not self._ledger.pod_refs(older.pod)
                ):
                    return newer.pod, older.pod
        return None

    def mistaken(self, observation: Observation) -> list[tuple[PodId, PodId]]:
        """Find the pods for which another of their name was taken in the observation before.

        Where one entry may have been of either, and now there are two, it was the older pod's: the
        kubelet has come to the newer one only now (K3).

        Returns:
            The pods, each with the older one that was listed in its place.
        """
        found = [
            (pod, other)
            for pod, earlier in self._doubted.items()
            if pod in observation.pods
            for other in earlier & observation.pods
        ]
        self._doubted = {
            each.pod: frozenset(view.id for view in each.earlier)
            for each in observation.moving
            if each.earlier
        }
        return found
