"""The controller's client for the API server: the extender's, and Kueue's objects."""

from collections.abc import Callable, Collection, Iterable

from common.apiserver.client import Json, object_path, quoted
from common.apiserver.follower import Follower
from gates.state import GateState
from placement.cluster.workloads import API
from scheduler.cluster import SchedulerApi
from scheduler.following import OptionalCollection, Watches, node_part

WRITE_SECONDS = 4.0
"""Timeout of a write, also for the API server."""


class GateApi(SchedulerApi):
    """A client for one replica; errors are as of its base class."""

    user_agent = "gpu-turnstile-gates"

    def patch_workload_status(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to the status of a Workload."""
        path = object_path("workloads", namespace, name, api=API) + "/status"
        self.client.call("PATCH", path, patch, timeout=WRITE_SECONDS)

    def patch_check_status(self, name: str, patch: Json) -> None:
        """Apply a merge patch to the status of an AdmissionCheck."""
        path = f"{API}/admissionchecks/{quoted(name)}/status"
        self.client.call("PATCH", path, patch, timeout=WRITE_SECONDS)


def follow(state: GateState, api: GateApi) -> Watches:
    """Return the watches that update the state; no request is sent before they are started."""

    def follower(
        kind: str,
        known: Callable[[], Collection[str]],
        put: Callable[[Json], None],
        drop: Callable[[Json], None],
    ) -> Follower:
        def replace(listed: Iterable[Json]) -> None:
            objects = [*listed]
            for name in {*known()} - {each["metadata"]["name"] for each in objects}:
                drop({"metadata": {"name": name}})
            for each in objects:
                put(each)

        collection = OptionalCollection(
            client=api.client,
            path=f"{API}/{kind}s",
            kind=kind,
            read=lambda obj: obj,
            replace=replace,
            put=put,
            drop=drop,
        )
        return Follower(collection, trouble=f"no {kind}s from the API server")

    flavors, checks = "resourceflavor", "admissioncheck"
    return Watches(
        state,
        api,
        part=_part,
        workloads=True,
        others={
            "flavors": follower(
                flavors, lambda: state.flavors, state.put_flavor, state.drop_flavor
            ),
            "checks": follower(checks, lambda: state.checks, state.put_check, state.drop_check),
        },
    )


def _part(node: Json) -> Json:
    """Return only the fields of a node that are read."""
    part, status = node_part(node), node.get("status") or {}
    part["metadata"]["labels"] = node["metadata"].get("labels")
    part["spec"] = node.get("spec") or {}
    ready = [each for each in status.get("conditions") or () if each.get("type") == "Ready"]
    part["status"]["conditions"] = ready
    return part
