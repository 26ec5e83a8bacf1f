"""The pods of a node in this process: an API server, and a watch of it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.allocation import Allocation
from contract.names import Names
from placement.pods import Key, PodInfo, read_pod

Json = dict[str, Any]


class PodsInMemory:
    """A ``PodSource`` and ``AnnotationWriter``: an API server, and a watch of it.

    The API server has the truth; the watch may be behind it, and tells what it knows.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._truth: dict[str, PodInfo] = {}
        self._told: dict[str, PodInfo] = {}
        self._hanging = False
        self._on_change: Callable[[PodInfo], None] = lambda _view: None
        self.fetched = 0

    def subscribe(self, on_change: Callable[[PodInfo], None]) -> None:
        """Set *on_change*: called, without a lock, for every pod of the watch."""
        self._on_change = on_change

    # --- what happens on the API server -------------------------------------------------

    def bind(self, manifest: Json, *, seen: bool = True) -> None:
        """Add a pod to the API server; *seen*: the agent's watch knows it already."""
        view = read_pod(manifest, self._names)
        with self._lock:
            self._truth[view.id.uid] = view
            told = seen and not self._hanging
            if told:
                self._told[view.id.uid] = view
        if told:
            self._on_change(view)

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        with self._lock:
            self._truth.pop(uid, None)
            if not self._hanging:
                self._told.pop(uid, None)

    def put(self, view: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Be the annotation writer: what is recorded on a pod shows in it from now on."""
        self._change(view.id.uid, annotated=allocations)

    def end(self, uid: str) -> None:
        """Show a pod as ended: it has, or the kubelet has rejected it."""
        self._change(uid, terminal=True)

    def run(self, uid: str) -> None:
        """Show a pod as running."""
        self._change(uid, running=True)
        with self._lock:
            view = None if self._hanging else self._told.get(uid)
        if view is not None:
            self._on_change(view)

    def recorded(self, uid: str) -> Mapping[str, Allocation]:
        """Return what is recorded on a pod."""
        with self._lock:
            view = self._truth.get(uid)
            return {} if view is None else view.annotated

    def _change(self, uid: str, **fields: Any) -> None:
        with self._lock:
            view = self._truth.get(uid)
            if view is None:
                return
            self._truth[uid] = replace(view, **fields)
            if uid in self._told and not self._hanging:
                self._told[uid] = self._truth[uid]

    # --- the watch ------------------------------------------------------------------------

    def hang(self) -> None:
        """Let the watch tell nothing more until it catches up."""
        with self._lock:
            self._hanging = True

    def catch_up(self) -> None:
        """Let the watch come up to date."""
        with self._lock:
            self._hanging = False
            changed = [v for uid, v in self._truth.items() if self._told.get(uid) != v]
            self._told = dict(self._truth)
        for view in changed:
            self._on_change(view)

    def uids_seen(self, key: Key) -> Sequence[str]:
        """Return the UIDs of the pods of a name that the watch has told of."""
        with self._lock:
            return [each.id.uid for each in self._told.values() if each.id.key == key]

    def is_synced(self) -> bool:
        """Return whether all pods are known."""
        return True

    def pods(self) -> Sequence[PodInfo]:
        """Return what the watch has told."""
        with self._lock:
            return tuple(self._told.values())

    def refresh(self, *, within: float) -> None:  # noqa: ARG002 -- the Protocol's
        """List the pods beside the watch."""
        with self._lock:
            found = [view for uid, view in self._truth.items() if uid not in self._told]
            self._told |= {view.id.uid: view for view in found}
        for view in found:
            self._on_change(view)

    def fetch(
        self,
        namespace: str,
        name: str,
        *,
        within: float = 1.0,  # noqa: ARG002 -- the Protocol's
    ) -> PodInfo | None:
        """Ask for one pod; a name has one, so others that the watch has told of are gone."""
        with self._lock:
            self.fetched += 1
            named = [v for v in self._truth.values() if v.id.key == (namespace, name)]
            if not named:
                return None
            view = named[-1]
            gone = [uid for uid, v in self._told.items() if v.id.key == view.id.key]
            for uid in gone:
                del self._told[uid]
            self._told[view.id.uid] = view
        self._on_change(view)
        return view
