"""Keeps the counts of our resources in the node's status, which quotas and schedulers count.

Without a device plugin the kubelet keeps counts that somebody else has written. But a kubelet that
has known a plugin refuses all pods with its resources (``no healthy devices present``) until it has
forgotten it, five minutes after the plugin's end: then its checkpoint does not name them any more.
A kubelet that starts without a checkpoint sets the counts to 0, so they are compared again and
again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.kubernetes_api.client import Api, Json
from common.apiserver.errors import REQUEST_ERRORS
from common.known_resources import registered_resources
from contract.quantity import format_quantity

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class NodeCounts:
    """Writes the counts when a reading of the node shows others. For one thread.

    Attributes:
        kubelet_dir: the kubelet's device plugin directory.
        counts: returns the wanted ``capacity`` and ``allocatable`` by resource.
        problem: why the counts are not written; empty if they are.
    """

    api: Api
    node: str
    kubelet_dir: Path
    counts: Callable[[], Mapping[str, Mapping[str, int]]]
    problem: str = ""

    def update(self, node: Json) -> None:
        """Compare the counts of a node, and write them if the kubelet has forgotten the plugin."""
        problem = self._write(self.counts(), node.get("status") or {})
        if problem and problem != self.problem:
            log.warning("counts not written", extra={"reason": problem})
        self.problem = problem

    def _write(self, wanted: Mapping[str, Mapping[str, int]], status: Json) -> str:
        """Write the counts unless the status has them; return why they cannot be written."""
        known = registered_resources(self.kubelet_dir)
        if known is None:
            return "the kubelet's device plugin checkpoint cannot be read"
        if known & wanted["capacity"].keys():
            return (
                "the kubelet has not forgotten the device plugin yet: it refuses GPU pods until "
                "about five minutes after the plugin's end"
            )
        texts = {
            field: {name: format_quantity(count) for name, count in counts.items()}
            for field, counts in wanted.items()
        }
        if all(
            counts.items() <= (status.get(each) or {}).items() for each, counts in texts.items()
        ):
            return ""
        try:
            self.api.patch_node_status(self.node, {"status": texts})
        except REQUEST_ERRORS as error:
            return f"the counts in the node's status cannot be written: {error}"
        log.info("counts written", extra={"counts": texts["allocatable"]})
        return ""
