"""The Node object: created once, its device counts kept up to date."""

import logging
import threading
from collections.abc import Callable, Mapping

from simulator.client import ApiClient, ApiError, Json

_log = logging.getLogger(__name__)

NODES = "/api/v1/nodes"
_RETRY_S = 0.25
_OWN: Mapping[str, str] = {
    "cpu": "64",
    "memory": "512Gi",
    "ephemeral-storage": "1Ti",
    "pods": "1000",
}

Counts = Callable[[], tuple[dict[str, int], dict[str, int]]]


class NodeStatus:
    """Reports the node until stopped; retries after errors.

    Args:
        api: ``None`` if nothing is reported.
        name: of the node.
        counts: returns (capacity, allocatable) of extended resources.
        every: seconds between reports if nothing changes.
        changed: set if the counts may have changed, or to end.
        stop: set to end.
    """

    def __init__(  # noqa: PLR0913 - collaborators, each a word for itself
        self,
        api: ApiClient | None,
        name: str,
        counts: Counts,
        *,
        every: float,
        changed: threading.Event,
        stop: threading.Event,
    ) -> None:
        self._api = api
        self._name = name
        self._counts = counts
        self._every = every
        self._stop = stop
        self._changed = changed
        self._published: set[str] = set()

    def run(self) -> None:
        """Report until stopped."""
        while not self._stop.is_set():
            self._changed.clear()
            try:
                self._report()
            except ApiError as error:
                _log.info("node status waits", extra={"node": self._name, "reason": str(error)})
                self._stop.wait(_RETRY_S)
            else:
                self._changed.wait(self._every)

    def _report(self) -> None:
        capacity, allocatable = self._counts()
        if self._api is None:
            return
        # The kubelet sets a removed resource to 0 (pkg/kubelet/nodestatus/setters.go).
        gone = {resource: "0" for resource in self._published if resource not in allocatable}
        status: Json = {
            "capacity": {**_OWN, **gone, **{r: str(n) for r, n in capacity.items()}},
            "allocatable": {**_OWN, **gone, **{r: str(n) for r, n in allocatable.items()}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.2",
                "containerRuntimeVersion": "containerd://2.3.4",
            },
        }
        path = f"{NODES}/{self._name}/status"
        try:
            self._api.patch(path, {"status": status})
        except ApiError as error:
            if error.status != 404:
                raise
            metadata = {"name": self._name, "labels": {"kubernetes.io/hostname": self._name}}
            self._api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            self._api.patch(path, {"status": status})
        self._published = set(allocatable)
