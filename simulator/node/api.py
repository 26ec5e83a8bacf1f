"""The API server of one node's pods: a watch that may lag, GETs and PATCHes that may fail."""

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Generic, Protocol, TypeVar, cast

from agent.errors import Unavailable
from agent.kubernetes_api.annotation_writer import allocation_patch
from agent.kubernetes_api.client import Api
from agent.kubernetes_api.pods import PodCache
from contract.allocation import Allocation
from contract.inventory import Inventory
from contract.names import Names
from placement.pods import PodId, PodInfo

Json = dict[str, Any]

NODE = "node"


class ApiPod(Protocol):
    """A pod as it is now.

    Attributes:
        annotations: its annotations.
    """

    annotations: dict[str, str]

    @property
    def id(self) -> PodId:
        """Its namespace, name and UID."""

    def manifest(self) -> Json:
        """Return a copy of its current manifest."""


class PodObject:
    """A pod whose state is its manifest, which others read too."""

    def __init__(self, manifest: Json) -> None:
        metadata = manifest["metadata"]
        self.id = PodId(metadata["namespace"], metadata["name"], metadata["uid"])
        self.annotations: dict[str, str] = metadata.setdefault("annotations", {})
        self._manifest = manifest

    def manifest(self) -> Json:
        """Return a copy of its current manifest."""
        return deepcopy(self._manifest)

    def set_phase(self, phase: str) -> bool:
        """Set its phase; return whether it has changed."""
        before = str(self._manifest.get("status", {}).get("phase"))
        self._manifest["status"] = {"phase": phase}
        return before != phase


_P = TypeVar("_P", bound=ApiPod)


class InMemoryApi(Generic[_P]):
    """The API server's pods of one node. Any thread may call.

    Attributes:
        away: whether the API server is unreachable.
        hanging: whether the watch delivers no events.
        failing: the number of GETs that will fail next.
        gets: the number of GETs so far.
        log: all events of the watch.
        patches: the agent's queued writes.
        on_get: called with name and outcome of every GET.
    """

    def __init__(self, names: Names, inventory: Inventory) -> None:
        """Start without pods; *inventory* has the node's cards."""
        self.away = self.hanging = False
        self.failing = self.gets = 0
        self.log: list[tuple[str, Json]] = []
        self.patches: list[Json] = []
        self.on_get: Callable[[str, str], None] = lambda _name, _outcome: None
        self._names = names
        self._indices = {each.uuid: each.index for each in inventory.cards}
        self._pods: dict[str, _P] = {}
        self._lock = threading.RLock()

    # --- what happens to pods ------------------

    def pods(self) -> list[_P]:
        """Return all pods."""
        with self._lock:
            return list(self._pods.values())

    def find(self, uid: str) -> _P | None:
        """Return the pod with this UID, if it exists."""
        return self._pods.get(uid)

    def has(self, pod: _P) -> bool:
        """Return whether *pod* exists: itself, not another of its name."""
        return self.find(pod.id.uid) is pod

    def named(self, namespace: str, name: str) -> _P | None:
        """Return the pod that has this name now."""
        with self._lock:
            return next((p for p in self._pods.values() if p.id.key == (namespace, name)), None)

    def add(self, pod: _P) -> None:
        """Create a pod, bound here."""
        with self._lock:
            self._pods[pod.id.uid] = pod
            self._notify("ADDED", pod)

    def changed(self, pod: _P) -> None:
        """Send a changed pod to watchers."""
        with self._lock:
            if self.has(pod):
                self._notify("MODIFIED", pod)

    def remove(self, pod: _P) -> None:
        """Delete a pod at once."""
        with self._lock:
            if self.has(pod):
                del self._pods[pod.id.uid]
                self._notify("DELETED", pod)

    def _notify(self, kind: str, pod: _P) -> None:
        obj = pod.manifest()
        obj["metadata"]["resourceVersion"] = str(len(self.log) + 1)
        self.log.append((kind, obj))

    # --- what the agent asks ------------------

    def get_pod(self, namespace: str, name: str, _within: float | None = None) -> Json | None:
        """Get one pod."""
        with self._lock:
            self.gets += 1
            if self.away:
                self.on_get(name, "away")
                raise Unavailable("API server: away")
            if self.failing:
                self.failing -= 1
                self.on_get(name, "failed")
                raise Unavailable("API server: timed out")
            self.on_get(name, "answered")
            pod = self.named(namespace, name)
            return pod.manifest() if pod is not None else None

    # --- what the agent writes (agent.holdings.interfaces.AnnotationWriter) ----------

    def put(self, info: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Queue a pod's allocations."""
        patch = allocation_patch(info, allocations, names=self._names, indices=self._indices)
        patch["metadata"] |= {"namespace": info.id.namespace, "name": info.id.name}
        self.patches.append(patch)

    def write(self) -> Sequence[tuple[_P, dict[str, str]]]:
        """Write all queued patches; return each pod with its written annotations.

        Patches for deleted pods are dropped, even if another pod has the name now.
        """
        with self._lock:
            patches: list[Json] = [] if self.away else [each["metadata"] for each in self.patches]
            del self.patches[: len(patches)]
            found = [(self.find(each["uid"]), each["annotations"]) for each in patches]
            written = [(pod, annotations) for pod, annotations in found if pod is not None]
            for pod, annotations in written:
                if not annotations.items() <= pod.annotations.items():
                    pod.annotations |= annotations
                    self.changed(pod)
        return written

    def list(
        self, _path: str, _query: Mapping[str, str], _within: float | None = None
    ) -> tuple[list[Json], str, str]:
        """List all pods. :class:`InMemoryWatch` reads their changes from the log."""
        if self.away:
            raise Unavailable("API server: away")
        with self._lock:
            return [each.manifest() for each in self._pods.values()], str(len(self.log)), ""


class InMemoryWatch:
    """Moves one ``PodCache`` along the API server's events, one by one, as a follower does."""

    def __init__(self, api: InMemoryApi[Any], names: Names, clock: Callable[[], float]) -> None:
        self._api = api
        self._open = False
        self._at = 0
        self._lock = threading.RLock()
        self.cache = PodCache(api=cast(Api, api), node=NODE, names=names, clock=clock)

    @property
    def behind(self) -> int:
        """Count the events that the cache has not received."""
        return len(self._api.log) - self._at

    def deliver(self, count: int = 1_000_000) -> None:
        """Deliver the next events to the cache; none if the API server is unreachable or hangs."""
        with self._lock:
            if self._api.away:
                self._open = False
            elif not self._open:
                self._at = int(self.cache.collection.list())
                self._open = True
            quiet = self._api.hanging or not self._open
            for _ in range(0 if quiet else min(count, self.behind)):
                self._at += 1
                self.cache.collection.apply(*self._api.log[self._at - 1])

    def end(self) -> None:
        """End the watch; the next delivery begins with a list."""
        self._open = False
