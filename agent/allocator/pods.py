"""The node's pods as the API shows them, and those that have left it and may still be listed."""

from collections import OrderedDict
from collections.abc import Sequence

from placement.pods import Key, PodId, PodInfo

_MOST_DEPARTED = 512


def kubelet_uid(view: PodInfo) -> str:
    """Return the UID by which the kubelet knows a pod: a static one has another there (K34)."""
    return view.runtime_uid or view.id.uid


class Pods:
    """What is known of pods. Not safe to share between threads: its owner locks."""

    def __init__(self) -> None:
        """Know nobody."""
        self._views: Sequence[PodInfo] = ()
        self._by_uid: dict[str, PodInfo] = {}
        self._by_key: dict[Key, list[PodInfo]] = {}
        # A pod deleted by force leaves the API before it leaves List (K20).
        self._departed: OrderedDict[str, PodInfo] = OrderedDict()

    def update(self, views: Sequence[PodInfo]) -> None:
        """Apply the pods known from the API."""
        if views is self._views:
            return
        fresh = {kubelet_uid(view): view for view in views}
        for uid, view in self._by_uid.items():
            if uid not in fresh and uid not in self._departed:
                self._departed[uid] = view
        for uid in fresh:
            self._departed.pop(uid, None)
        while len(self._departed) > _MOST_DEPARTED:
            self._departed.popitem(last=False)
        self._views, self._by_uid = views, fresh
        self._by_key = {}
        for view in (*views, *reversed(self._departed.values())):
            self._by_key.setdefault(view.id.key, []).append(view)

    @property
    def shown(self) -> Sequence[PodInfo]:
        """The pods that the API shows now."""
        return self._views

    def of_name(self, key: Key) -> Sequence[PodInfo]:
        """Return the pods of a name: those that the API shows, then those that have left it."""
        return self._by_key.get(key, ())

    def by_uid(self, uid: str) -> PodInfo | None:
        """Return the pod that the kubelet knows by a UID."""
        return self._by_uid.get(uid) or self._departed.get(uid)

    def is_shown(self, uid: str) -> bool:
        """Return whether the API shows the pod that the kubelet knows by a UID."""
        return uid in self._by_uid

    def view(self, pod: PodId) -> PodInfo | None:
        """Return what is known of *pod*."""
        return next((each for each in self.of_name(pod.key) if each.id == pod), None)
