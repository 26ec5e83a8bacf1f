"""The watches that update the state: nodes, pods that have not ended, and Kueue's workloads."""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus

from common.apiserver.client import Json
from common.apiserver.errors import Rejected
from common.apiserver.follower import Collection, Follower, Followers, skipping_unreadable
from common.backoff import Jitter, by_chance
from placement.cluster.workloads import API
from scheduler.cluster import SchedulerApi
from scheduler.state import State


class OptionalCollection(Collection[Json]):
    """A collection of an API that may not be served: then it is empty."""

    def list(self) -> str:
        """Read all objects; see :meth:`common.apiserver.follower.Collection.list`."""
        try:
            return super().list()
        except Rejected as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self.replace(())
            return ""


class Watches(Followers):
    """All watches, each in its own thread."""

    def __init__(  # noqa: PLR0913 -- what is followed, by keyword
        self,
        state: State,
        api: SchedulerApi,
        *,
        part: Callable[[Json], Json] | None = None,
        workloads: bool = False,
        others: Mapping[str, Follower] | None = None,
        jitter: Jitter = by_chance,
    ) -> None:
        """Prepare; no request is sent before :meth:`start`.

        Args:
            state: what is updated.
            api: the client.
            part: returns the fields of a node that are read; ``None`` for those of its cards.
            workloads: whether Kueue's workloads are followed.
            others: followers of other collections.
            jitter: spreads the pauses after errors.
        """
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
            read=part or node_part,
            replace=lambda listed: state.replace_nodes([*listed]),
            put=state.put_node,
            drop=lambda node: state.drop_node(node["metadata"]["name"]),
        )
        self._pods = Follower(pods, trouble="no pods from the API server", jitter=jitter)
        self._relisted = [self._pods]
        followers = {
            "pods": self._pods,
            "nodes": Follower(nodes, trouble="no nodes from the API server", jitter=jitter),
            **(others or {}),
        }
        if workloads:
            collection = OptionalCollection(
                client=api.pod_client,
                path=f"{API}/workloads",
                kind="workload",
                read=lambda workload: workload,
                replace=self._replace_workloads,
                put=state.put_workload,
                drop=lambda workload: state.drop_workload(_uid(workload)),
            )
            trouble = "no workloads from the API server"
            followers["workloads"] = Follower(collection, trouble=trouble, jitter=jitter)
            self._relisted.append(followers["workloads"])
        super().__init__(**followers)

    def list_pods_again(self) -> int:
        """Request a list of pods, and of workloads, that starts after this call.

        Returns:
            Its number, for :meth:`has_listed`.
        """
        (number, *_) = [each.list_again() for each in self._relisted]
        self._api.pod_client.end_watches()
        return number

    def has_listed(self, number: int) -> bool:
        """Return whether the lists with this number are done, and nodes are in step too.

        If they are not done, the current watches are ended: they may have opened since the request.
        """
        if not all(each.has_listed(number) for each in self._relisted):
            self._api.pod_client.end_watches()
            return False
        return self.in_step

    def _replace_workloads(self, listed: Iterable[Json]) -> None:
        missing = {*self._state.known_workloads()}
        for workload in listed:
            missing.discard(_uid(workload))
            with skipping_unreadable("workload", workload):
                self._state.put_workload(workload)
        for uid in missing:
            self._state.drop_workload(uid)

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


def node_part(node: Json) -> Json:
    """Return only the fields of a node that are read; images and conditions are most of it."""
    status = node.get("status") or {}
    metadata = node["metadata"]
    return {
        "metadata": {"name": metadata["name"], "annotations": metadata.get("annotations")},
        "status": {key: status[key] for key in ("capacity", "allocatable") if key in status},
    }
