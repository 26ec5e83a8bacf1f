"""Reads what Kueue has about one pod or Job: all of it optional."""

from contextlib import suppress
from http import HTTPStatus

from common.apiserver.client import Client, Json, object_path, quoted
from common.apiserver.errors import REQUEST_ERRORS, Rejected
from placement.cluster.workloads import API
from view.model.node_facts import find_condition
from view.model.queues import JOB_UID, QueueFacts, QueueKey, newest

_SECONDS = 10.0
_GROUP_PATH, _, _VERSION = API.rpartition("/")


def read_queue(client: Client, namespace: str, key: QueueKey) -> QueueFacts | None:
    """Read the Workload of a pod or a Job, and its queues; ``None`` without Kueue.

    What cannot be read of the Workload is unknown; of the queues nothing is said then.
    """
    try:
        workload = _find(client, namespace, key)
    except REQUEST_ERRORS as error:
        return _unread(client, error)
    if workload is None:
        return QueueFacts(None)
    name, inactive = ((workload.get("status") or {}).get("admission") or {}).get("clusterQueue"), ""
    queue = (workload.get("spec") or {}).get("queueName")
    with suppress(*REQUEST_ERRORS):  # without its queues the Workload still has Kueue's reason
        if not name and queue:
            local = client.find(
                object_path("localqueues", namespace, queue, api=API), timeout=_SECONDS
            )
            name = ((local or {}).get("spec") or {}).get("clusterQueue")
        of = client.find(f"{API}/clusterqueues/{quoted(name)}", timeout=_SECONDS) if name else None
        active = find_condition((of or {}).get("status") or {}, "Active")
        inactive = str(active.get("message") or "") if active.get("status") == "False" else ""
    return QueueFacts(workload, name or "", inactive)


def _find(client: Client, namespace: str, key: QueueKey) -> Json | None:
    path = f"{API}/namespaces/{quoted(namespace)}/workloads"
    queries = [{"fieldSelector": f"metadata.name={each}"} for each in key.names]
    queries += [{"labelSelector": f"{JOB_UID}={each}"} for each in key.uids]
    for query in queries:
        found, _, _ = client.list(path, query, _SECONDS)
        if found:
            return newest(found)
    return None


def _unread(client: Client, error: Exception) -> QueueFacts | None:
    """Return that a Workload is unknown, or ``None`` if the cluster has no Kueue at all."""
    group = _GROUP_PATH.rpartition("/")[2]
    try:
        found = client.find(_GROUP_PATH, timeout=_SECONDS)
    except REQUEST_ERRORS:
        return QueueFacts(None, unread=str(error))
    if found is None:
        return None
    if isinstance(error, Rejected) and error.status == HTTPStatus.NOT_FOUND:
        served = ", ".join(each["version"] for each in found["versions"])
        return QueueFacts(None, unread=f"{group}/{_VERSION} is needed, {served} is served")
    return QueueFacts(None, unread=str(error))
