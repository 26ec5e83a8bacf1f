"""The pods of a node in this process: an API server, and a watch of it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.podview import PodView, parse_pod
from contract.allocation import Allocation
from contract.names import Names

Json = dict[str, Any]


class PodsInMemory:
    """A :class:`agent.ports.PodSource` and ``Outbox``: an API server, and a watch of it."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._known: dict[str, PodView] = {}
        self._unseen: dict[str, PodView] = {}
        self.fetched = 0

    def bind(self, manifest: Json, *, seen: bool = True) -> None:
        """Have a pod on the API server; *seen*: the agent's watch knows it already."""
        view = parse_pod(manifest, self._names)
        with self._lock:
            self._unseen.pop(view.id.uid, None)
            (self._known if seen else self._unseen)[view.id.uid] = view

    def remove(self, uid: str) -> None:
        """Have a pod gone."""
        with self._lock:
            self._known.pop(uid, None)
            self._unseen.pop(uid, None)

    def put(self, view: PodView, allocations: dict[str, Allocation]) -> None:
        """Be the outbox: what is recorded on a pod shows in it from now on."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if view.id.uid in pods:
                    shown = pods[view.id.uid]
                    pods[view.id.uid] = replace(shown, assigned=True, recorded=allocations)

    def recorded(self, uid: str) -> Mapping[str, Allocation]:
        """Give what is recorded on a pod."""
        with self._lock:
            view = self._known.get(uid) or self._unseen.get(uid)
            return {} if view is None else view.recorded

    def end(self, uid: str) -> None:
        """Have a pod shown as failed: the kubelet has rejected it."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if uid in pods:
                    pods[uid] = replace(pods[uid], terminal=True)

    def delete(self, uid: str) -> None:
        """Have a pod shown as being deleted."""
        with self._lock:
            for pods in (self._known, self._unseen):
                if uid in pods:
                    pods[uid] = replace(pods[uid], deleting=True)

    def catch_up(self) -> None:
        """Let the watch come up to date."""
        with self._lock:
            self._known |= self._unseen
            self._unseen = {}

    def views(self) -> Sequence[PodView]:
        """Give what the watch has told."""
        with self._lock:
            return tuple(self._known.values())

    def fetch(self, namespace: str, name: str) -> PodView | None:
        """Ask for one pod."""
        with self._lock:
            self.fetched += 1
            for uid, view in self._unseen.items():
                if view.id.key == (namespace, name):
                    self._known[uid] = self._unseen.pop(uid)
                    return view
        return None
