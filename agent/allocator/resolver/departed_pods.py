"""Pods that have left the API and may still be listed, or may yet be.

A pod that is deleted by force leaves the API before it leaves ``List`` (fact K20), and may
even be admitted after that: what was known of it is kept until it has left ``List``. Pure.

The structure is not safe to share between threads: its owner locks.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from agent.allocator.model.pod_view import Key, PodView
from agent.allocator.model.podresources import MatchedPod

# Of those that were never listed: the kubelet may still come to them.
_MOST_DEPARTED = 512


class DepartedPods:
    """What was known of pods that have left the API, by UID."""

    def __init__(self) -> None:
        """Remember nobody."""
        self._departed: OrderedDict[str, PodView] = OrderedDict()
        self._lingering: set[str] = set()  # those of them that ``List`` has shown

    def __bool__(self) -> bool:
        """Whether any is remembered."""
        return bool(self._departed)

    def __contains__(self, uid: str) -> bool:
        """Return whether the pod with *uid* has left the API and is remembered."""
        return uid in self._departed

    def get(self, uid: str) -> PodView | None:
        """Return what was known of the pod with *uid*."""
        return self._departed.get(uid)

    def add(self, view: PodView, *, listed: bool) -> None:
        """Remember a pod that has left the API, in case that it is listed, or will be."""
        self._departed[view.id.uid] = view
        if listed:
            self._lingering.add(view.id.uid)
        if len(self._departed) > _MOST_DEPARTED:
            self.forget(next(iter(self._departed)))

    def forget(self, uid: str) -> None:
        """Forget the pod with *uid*."""
        self._departed.pop(uid, None)
        self._lingering.discard(uid)

    def recall(self, found: Sequence[MatchedPod], alone: Collection[Key]) -> tuple[MatchedPod, ...]:
        """Add what was known of listed pods of which the API tells no more.

        Args:
            found: the listed pods.
            alone: names that the API gives to nobody now.
        """
        by_key: dict[Key, list[PodView]] = {}
        for view in self._departed.values():
            by_key.setdefault(view.id.key, []).append(view)
        recalled: list[MatchedPod] = []
        taken = {each.pod.uid for each in found}
        for each in found:
            views = by_key.get(each.listed.key, ())
            if each.view is not None:
                recalled.append(_doubted(each, [one for one in views if one.id.uid not in taken]))
                continue
            if each.pod.uid:
                views = [view for view in views if view.id == each.pod]
            else:  # known by its name alone
                views = [
                    view for view in views if view.id.uid not in taken and each.listed.may_be(view)
                ]
            if not views:
                recalled.append(each)
                continue
            view = views[-1]
            taken.add(view.id.uid)
            identified = bool(each.pod.uid) or view.id.key in alone
            recalled.append(replace(each, pod=view.id, view=view, identified=identified))
        return tuple(sorted(recalled, key=lambda each: each.pod))

    def let_go(self, found: Iterable[MatchedPod]) -> None:
        """Forget the pods that have left ``List`` after they were in it."""
        found = tuple(found)
        shown = {each.pod.uid for each in found if each.pod.uid in self._departed}
        shown |= {view.id.uid for each in found for view in each.earlier}
        for uid in self._lingering - shown:
            self.forget(uid)
        self._lingering |= shown


def _doubted(each: MatchedPod, departed: Sequence[PodView]) -> MatchedPod:
    """Return an entry with the pods that have left the API and that it may be as well."""
    earlier = tuple(view for view in departed if each.listed.may_be(view))
    if not earlier or any(each.listed.each_held()):
        return each
    return replace(each, earlier=earlier)
