"""The API server: pods by name, a watch that may lag, GETs and PATCHes that may fail."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent.errors import Unavailable
from agent.kubernetes_api.annotation_writer import allocation_patch
from agent.kubernetes_api.client import Gone, Rejected
from agent.kubernetes_api.pods import PodCache
from contract.allocation import Allocation
from placement.pods import PodInfo
from tests.in_memory.pods import NAMES, NODE, Json, Pod


@dataclass
class Api:
    """Pods on one node.

    Attributes:
        away: nothing is answered.
        failing: so many GETs fail from now on.
        log: all events of the watch.
        patches: what the agent wants to write.
        on_get: told of every GET before it is answered.
    """

    away: bool = False
    failing: int = 0
    log: list[tuple[str, Json]] = field(default_factory=list)
    patches: list[Json] = field(default_factory=list)
    on_get: Callable[[str, str], None] = lambda _name, _outcome: None
    indices: dict[str, int] = field(default_factory=dict)
    _pods: dict[tuple[str, str], Pod] = field(default_factory=dict)

    # --- what happens to pods ------------------

    def pods(self) -> list[Pod]:
        """Return the pods there are."""
        return list(self._pods.values())

    def has(self, pod: Pod) -> bool:
        """Return whether *pod* is there: it, not another of its name."""
        return self._pods.get(pod.key) is pod

    def free(self, name: str) -> bool:
        """Return whether a name can be given to a new pod."""
        return ("default", name) not in self._pods

    def add(self, pod: Pod) -> None:
        """Create a pod, bound here."""
        self._pods[pod.key] = pod
        self._tell("ADDED", pod)

    def changed(self, pod: Pod) -> None:
        """Send a changed pod to watchers."""
        if self.has(pod):
            self._tell("MODIFIED", pod)

    def remove(self, pod: Pod) -> None:
        """Delete a pod at once."""
        if self.has(pod):
            del self._pods[pod.key]
            self._tell("DELETED", pod)

    def _tell(self, kind: str, pod: Pod) -> None:
        obj = pod.manifest()
        obj["metadata"]["resourceVersion"] = str(len(self.log) + 1)
        self.log.append((kind, obj))

    # --- what the agent asks ------------------

    def list_pods(self, node: str, within: float | None = None) -> tuple[list[Json], str]:
        """List all pods."""
        if self.away:
            raise Unavailable("API server: away")
        return [each.manifest() for each in self._pods.values()], str(len(self.log))

    def watch_pods(self, node: str, resource_version: str) -> Iterator[tuple[str, Json]]:
        """Tell nothing: :class:`Watch` takes events from the log."""
        return iter(())

    def get_pod(self, namespace: str, name: str, within: float | None = None) -> Json | None:
        """Get one pod, as it is now."""
        if self.away:
            self.on_get(name, "away")
            raise Unavailable("API server: away")
        if self.failing:
            self.failing -= 1
            self.on_get(name, "failed")
            raise Unavailable("API server: timed out")
        self.on_get(name, "answered")
        pod = self._pods.get((namespace, name))
        return pod.manifest() if pod is not None else None

    # --- what the agent writes (agent.allocator.model.ports.Outbox) ------------------

    def put(self, view: PodInfo, allocations: dict[str, Allocation]) -> None:
        """Queue what a pod's containers got."""
        patch = allocation_patch(view, allocations, names=NAMES, indices=self.indices)
        patch["metadata"] |= {"namespace": view.id.namespace, "name": view.id.name}
        self.patches.append(patch)

    def write(self) -> list[tuple[Pod, dict[str, str]]]:
        """Carry out what is queued; return what was written on which pod."""
        if self.away:
            return []
        written = []
        for patch in self.patches:
            try:
                written.append(self._patch(patch))
            except (Rejected, Gone):
                continue
        self.patches.clear()
        return written

    def _patch(self, patch: Json) -> tuple[Pod, dict[str, str]]:
        wanted = patch["metadata"]
        pod = self._pods.get((wanted["namespace"], wanted["name"]))
        if pod is None:
            raise Gone("not found")
        if wanted["uid"] != pod.manifest()["metadata"]["uid"]:
            raise Gone("another UID")
        pod.annotations |= wanted["annotations"]
        self.changed(pod)
        return pod, wanted["annotations"]


class Watch:
    """Moves one ``PodCache`` along the API server's events, one by one, as a follower does."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api = api
        self._open = False
        self._at = 0
        self.cache = PodCache(api=api, node=NODE, names=NAMES, clock=clock)

    @property
    def behind(self) -> int:
        """Count the events that the cache has not been told of."""
        return len(self._api.log) - self._at

    def deliver(self, count: int = 1_000_000) -> None:
        """Tell the cache of the next events; of none while the API server is away."""
        if self._api.away:
            self._open = False
        elif not self._open:
            self.cache.list()
            self._open, self._at = True, len(self._api.log)
        for _ in range(min(count, self.behind) if self._open else 0):
            self._at += 1
            self.cache.apply(*self._api.log[self._at - 1])

    def end(self) -> None:
        """Let the watch end: what comes next is a list."""
        self._open = False
