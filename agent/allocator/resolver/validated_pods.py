"""The pods of this node with those allocations alone that can be true here. Pure.

What a pod's annotation says of its allocation was written by an agent, or by whoever wrote the
manifest: copied from a running pod, forged, or older than the webhook. The reader of the pod
(``pod_view``) knows the spec and drops what contradicts it. Here the cards are known too.
Everything in the agent that reads allocation annotations reads them from here.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent.allocator.model.pod_view import PodView, is_complete
from agent.allocator.model.ports import PodSource
from agent.allocator.model.tickets import DeviceTable


class ValidatedPods:
    """A ``PodSource`` without allocations of cards that this node does not have."""

    def __init__(self, pods: PodSource, table: DeviceTable) -> None:
        """Take pods from *pods*, and the cards from *table*."""
        self._pods = pods
        self._cards = frozenset(card.uuid for card in table.inventory.cards)
        # Replaced as a whole, so that threads may share it. Who compares views compares objects.
        self._last: tuple[Sequence[PodView], Sequence[PodView]] = ((), ())
        self._changed: dict[str, tuple[PodView, PodView]] = {}

    def views(self) -> Sequence[PodView]:
        """Return all known pods; the same object for as long as nothing has changed."""
        views = self._pods.views()
        told, valid = self._last
        if views is told:
            return valid
        before, changed = self._changed, dict[str, tuple[PodView, PodView]]()
        found = []
        for view in views:
            kept = view
            if view.annotated and not self._all_here(view):
                pair = before.get(view.id.uid)
                kept = pair[1] if pair is not None and pair[0] is view else self.validate(view)
                changed[view.id.uid] = view, kept
            found.append(kept)
        valid = tuple(found) if changed else views
        self._changed = changed
        self._last = views, valid
        return valid

    def fetch(
        self, namespace: str, name: str, *, within: float = 1.0, again: bool = False
    ) -> PodView | None:
        """Ask for one pod; ``None`` when there is none on this node.

        Args:
            namespace: of the pod.
            name: of the pod.
            within: seconds for the answer.
            again: ask although the same pod was asked for a moment ago.

        Raises:
            Unavailable: no answer in time.
        """
        view = self._pods.fetch(namespace, name, within=within, again=again)
        return None if view is None else self.validate(view)

    def refresh(self, *, within: float) -> None:
        """List the pods once, beside the watch, and learn those that it has not told of.

        Args:
            within: seconds for the answer.

        Raises:
            Unavailable: no answer in time.
        """
        self._pods.refresh(within=within)

    def validate(self, view: PodView) -> PodView:
        """Return a pod without its allocations of cards that this node does not have."""
        if self._all_here(view):
            return view
        annotated = {
            name: each
            for name, each in view.annotated.items()
            if self._cards.issuperset(each.cards)
        }
        assigned = view.assigned and is_complete(view.demand, annotated)
        return replace(view, annotated=annotated, assigned=assigned)

    def _all_here(self, view: PodView) -> bool:
        return all(self._cards.issuperset(each.cards) for each in view.annotated.values())
