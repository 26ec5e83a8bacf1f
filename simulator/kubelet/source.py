"""The source of pods: list, then watch; passed on one batch at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from simulator.client import ApiClient, Json
from simulator.kubelet.errors import InvalidPod
from simulator.kubelet.pods import Pod, parse_pod
from simulator.reflector import Reflector

_log = logging.getLogger(__name__)


class Op(Enum):
    """The kind of a batch."""

    LIST = auto()
    """All pods of the node in the API server."""
    PUT = auto()
    """New or changed pods."""
    DROP = auto()
    """Deleted pods."""


@dataclass(frozen=True, slots=True)
class PodBatch:
    """The pods of a list, or of one watch event."""

    op: Op
    pods: tuple[Pod, ...]


def pods_of(node_name: str, client: ApiClient, deliver: Callable[[PodBatch], None]) -> Reflector:
    """Follow the pods of one node; *deliver* is called with each batch, in order, and may block."""

    def on_event(kind: str, obj: Json) -> None:
        deliver(PodBatch(Op.DROP if kind == "DELETED" else Op.PUT, tuple(_read([obj]))))

    return Reflector(
        client,
        "/api/v1/pods",
        on_list=lambda objects: deliver(PodBatch(Op.LIST, tuple(_read(objects)))),
        on_event=on_event,
        selector=f"spec.nodeName={node_name}",
    )


def _read(objects: Iterable[Json]) -> Iterator[Pod]:
    for obj in objects:
        try:
            yield parse_pod(obj)
        except InvalidPod as error:
            _log.warning("pod ignored", extra={"reason": str(error)})
