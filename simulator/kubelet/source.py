"""Where pods come from: list, then watch; handed on one batch at a time."""

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
    """What is told of pods."""

    LIST = auto()
    """All that the API server has for the node."""
    PUT = auto()
    """New or changed ones."""
    DROP = auto()
    """Such as the API server has no more."""


@dataclass(frozen=True, slots=True)
class PodBatch:
    """A batch: a list, or what an event of a watch brought."""

    op: Op
    pods: tuple[Pod, ...]


def pods_of(node_name: str, client: ApiClient, deliver: Callable[[PodBatch], None]) -> Reflector:
    """Follow the pods of one node; *deliver* takes each batch, in order, and may block."""

    def happened(kind: str, obj: Json) -> None:
        deliver(PodBatch(Op.DROP if kind == "DELETED" else Op.PUT, tuple(_read([obj]))))

    return Reflector(
        client,
        "/api/v1/pods",
        on_list=lambda objects: deliver(PodBatch(Op.LIST, tuple(_read(objects)))),
        on_event=happened,
        selector=f"spec.nodeName={node_name}",
    )


def _read(objects: Iterable[Json]) -> Iterator[Pod]:
    for obj in objects:
        try:
            yield parse_pod(obj)
        except InvalidPod as error:
            _log.warning("pod passed over", extra={"reason": str(error)})
