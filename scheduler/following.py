"""The two watches that update the state: nodes, and pods that have not ended."""

from collections.abc import Iterator
from typing import Protocol

from common.apiserver.client import Json
from common.apiserver.follower import Follower, Followers, skipping_unreadable
from common.backoff import Jitter, by_chance
from scheduler.state import State


class WatchApi(Protocol):
    """The part of the API with nodes and pods."""

    def list_pods(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the pods."""
        ...

    def watch_pods(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of pods."""
        ...

    def end_watch_of_pods(self) -> None:
        """End the watch of pods at once."""
        ...

    def list_nodes(self, more: str) -> tuple[list[Json], str, str]:
        """List one page of the nodes."""
        ...

    def watch_nodes(self, version: str) -> Iterator[tuple[str, Json]]:
        """Stream changes of nodes."""
        ...


class Watches(Followers):
    """Both watches, each in its own thread."""

    def __init__(self, state: State, api: WatchApi, *, jitter: Jitter = by_chance) -> None:
        """Prepare; no request is sent before :meth:`start`.

        Args:
            state: updated by the watches.
            api: the API server.
            jitter: source of randomness for pauses.
        """
        self._api = api
        pods, nodes = "no pods from the API server", "no nodes from the API server"
        self._pods = Follower(_Pods(state, api), trouble=pods, jitter=jitter)
        super().__init__(
            pods=self._pods, nodes=Follower(_Nodes(state, api), trouble=nodes, jitter=jitter)
        )

    def list_pods_again(self) -> int:
        """Request a list of pods that starts after this call; return its number.

        See :meth:`has_listed`.
        """
        number = self._pods.list_again()
        self._api.end_watch_of_pods()
        return number

    def has_listed(self, number: int) -> bool:
        """Return whether the list of pods with this number is done, and nodes are in step too.

        If it is not done, the current watch is ended: it may have opened since the request.
        """
        if not self._pods.has_listed(number):
            self._api.end_watch_of_pods()
            return False
        return self.in_step


class _Pods:
    """The pods, for :class:`Follower`."""

    def __init__(self, state: State, api: WatchApi) -> None:
        self._state = state
        self._api = api

    def list(self) -> str:
        known = self._state.known_pods()
        listed: set[str] = set()
        more, version = "", ""
        while True:
            # Only one page is in memory at a time.
            items, version, more = self._api.list_pods(more)
            for obj in items:
                listed.add(obj["metadata"].get("uid", ""))
                with skipping_unreadable("pod", obj):
                    self._state.put_pod(obj)
            if not more:
                break
        self._state.forget_missing(known, listed)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        return self._api.watch_pods(version)

    def apply(self, kind: str, obj: Json) -> None:
        with skipping_unreadable("pod", obj):
            if kind == "DELETED":
                self._state.drop_pod(obj["metadata"].get("uid", ""))
            else:
                self._state.put_pod(obj)


class _Nodes:
    """The nodes, for :class:`Follower`."""

    def __init__(self, state: State, api: WatchApi) -> None:
        self._state = state
        self._api = api

    def list(self) -> str:
        nodes: list[Json] = []
        more, version = "", ""
        while True:
            items, version, more = self._api.list_nodes(more)
            nodes += [_part(obj) for obj in items]
            if not more:
                break
        self._state.replace_nodes(nodes)
        return version

    def watch(self, version: str) -> Iterator[tuple[str, Json]]:
        return self._api.watch_nodes(version)

    def apply(self, kind: str, obj: Json) -> None:
        with skipping_unreadable("node", obj):
            if kind == "DELETED":
                self._state.drop_node(obj["metadata"]["name"])
            else:
                self._state.put_node(obj)


def _part(node: Json) -> Json:
    """Return only the fields of a node that are read; images and conditions are most of it."""
    status = node.get("status") or {}
    metadata = node["metadata"]
    return {
        "metadata": {"name": metadata["name"], "annotations": metadata.get("annotations")},
        "status": {key: status[key] for key in ("capacity", "allocatable") if key in status},
    }
