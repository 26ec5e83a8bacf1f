"""The two watches that update the state: nodes, and pods that have not ended."""

from collections.abc import Iterable

from common.apiserver.client import Json
from common.apiserver.follower import Collection, Follower, Followers, skipping_unreadable
from common.backoff import Jitter, by_chance
from scheduler.cluster import SchedulerApi
from scheduler.state import State


class Watches(Followers):
    """Both watches, each in its own thread."""

    def __init__(self, state: State, api: SchedulerApi, *, jitter: Jitter = by_chance) -> None:
        """Prepare; no request is sent before :meth:`start`."""
        self._state = state
        self._api = api
        pods = Collection(
            client=api.pod_client,
            path="/api/v1/pods",
            kind="pod",
            read=lambda pod: pod,
            replace=self._replace_pods,
            put=state.put_pod,
            drop=lambda pod: state.drop_pod(_uid(pod)),
            query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
        )
        nodes = Collection(
            client=api.client,
            path="/api/v1/nodes",
            kind="node",
            read=_part,
            replace=lambda listed: state.replace_nodes([*listed]),
            put=state.put_node,
            drop=lambda node: state.drop_node(node["metadata"]["name"]),
        )
        self._pods = Follower(pods, trouble="no pods from the API server", jitter=jitter)
        super().__init__(
            pods=self._pods,
            nodes=Follower(nodes, trouble="no nodes from the API server", jitter=jitter),
        )

    def list_pods_again(self) -> int:
        """Request a list of pods that starts after this call; return its number.

        See :meth:`has_listed`.
        """
        number = self._pods.list_again()
        self._api.pod_client.end_watches()
        return number

    def has_listed(self, number: int) -> bool:
        """Return whether the list of pods with this number is done, and nodes are in step too.

        If it is not done, the current watch is ended: it may have opened since the request.
        """
        if not self._pods.has_listed(number):
            self._api.pod_client.end_watches()
            return False
        return self.in_step

    def _replace_pods(self, listed: Iterable[Json]) -> None:
        """Take pods page by page: 100,000 of them are half a gigabyte."""
        known = self._state.known_pods()
        uids: set[str] = set()
        for pod in listed:
            uids.add(_uid(pod))
            with skipping_unreadable("pod", pod):
                self._state.put_pod(pod)
        self._state.forget_missing(known, uids)


def _uid(obj: Json) -> str:
    return str(obj["metadata"].get("uid", ""))


def _part(node: Json) -> Json:
    """Return only the fields of a node that are read; images and conditions are most of it."""
    status = node.get("status") or {}
    metadata = node["metadata"]
    return {
        "metadata": {"name": metadata["name"], "annotations": metadata.get("annotations")},
        "status": {key: status[key] for key in ("capacity", "allocatable") if key in status},
    }
