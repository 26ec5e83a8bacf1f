"""Where pods come from: list, then watch; handed on one batch at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from simulator.client import ApiClient, Json
from simulator.kubelet.errors import InvalidPod
from simulator.kubelet.pods import Pod, parse_pod
from simulator.reflector import Reflector

PODS = "/api/v1/pods"
_log = logging.getLogger(__name__)


class Op(Enum):
    """What is told of pods."""

    LIST = auto()
    """All that the API server has for the node."""
    PUT = auto()
    """New or changed ones."""
    DROP = auto()
    """Such as the API server has no more."""


@dataclass(frozen=True, slots=True)
class Change:
    """A batch: a list, or what an event of a watch brought."""

    op: Op
    pods: tuple[Pod, ...]


class PodSource:
    """Follows the pods of one node.

    Args:
        deliver: takes each batch, in order; it may block.
    """

    def __init__(
        self, client: ApiClient, node_name: str, deliver: Callable[[Change], None]
    ) -> None:
        self._deliver = deliver
        self._reflector = Reflector(
            client,
            PODS,
            on_list=self._listed,
            on_event=self._happened,
            selector=f"spec.nodeName={node_name}",
        )

    def run(self) -> None:
        """List and watch until :meth:`stop`."""
        self._reflector.run()

    def stop(self) -> None:
        """End."""
        self._reflector.stop()

    def _listed(self, objects: Iterable[Json]) -> None:
        self._deliver(Change(Op.LIST, tuple(_pods(objects))))

    def _happened(self, kind: str, obj: Json) -> None:
        op = Op.DROP if kind == "DELETED" else Op.PUT
        self._deliver(Change(op, tuple(_pods([obj]))))


def _pods(objects: Iterable[Json]) -> Iterator[Pod]:
    for obj in objects:
        try:
            yield parse_pod(obj)
        except InvalidPod as error:
            _log.warning("pod passed over", extra={"reason": str(error)})
