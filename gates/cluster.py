"""The controller's client for the API server: the extender's, and Kueue's objects."""

from common.apiserver.client import Json, object_path, quoted
from common.apiserver.follower import Collection, Follower
from gates.state import GateState
from placement.cluster.workloads import API
from scheduler.cluster import SchedulerApi
from scheduler.following import OptionalCollection, Watches, node_part

WRITE_SECONDS = 4.0
"""Timeout of a write, also for the API server."""


class GateApi(SchedulerApi):
    """A client for one replica; errors are as of its base class."""

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

    def collection(kind: str, put: object, drop: object) -> Follower:
        def replace(listed: object) -> None:
            objects = [*listed]  # type: ignore[call-overload]
            names = {each["metadata"]["name"] for each in objects}
            for name in known() - names:
                drop({"metadata": {"name": name}})  # type: ignore[operator]
            for each in objects:
                put(each)  # type: ignore[operator]

        def known() -> set[str]:
            return {*(state.flavors if kind == "resourceflavor" else state.checks)}

        made: Collection[Json] = OptionalCollection(
            client=api.client,
            path=f"{API}/{kind}s",
            kind=kind,
            read=lambda obj: obj,
            replace=replace,
            put=put,  # type: ignore[arg-type]
            drop=drop,  # type: ignore[arg-type]
        )
        return Follower(made, trouble=f"no {kind}s from the API server")

    return Watches(
        state,
        api,
        part=_part,
        workloads=True,
        others={
            "flavors": collection("resourceflavor", state.put_flavor, state.drop_flavor),
            "checks": collection("admissioncheck", state.put_check, state.drop_check),
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
