"""Where pods come from: list, then watch; what changed is handed on, one batch at a time."""

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
    """What happened to pods."""

    ADD = auto()
    UPDATE = auto()
    REMOVE = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """A batch: of a list all new pods at once, of a watch one."""

    op: Op
    pods: tuple[Pod, ...]


class PodStore:
    """The pods as last seen, to tell new ones from changed ones. Pure."""

    def __init__(self) -> None:
        self._known: dict[str, Pod] = {}

    def replace(self, pods: Iterable[Pod]) -> Iterator[Change]:
        """Take a whole list. The first one always gives an ADD, even an empty one."""
        listed = {pod.uid: pod for pod in pods}
        removed = tuple(pod for uid, pod in self._known.items() if uid not in listed)
        if removed:
            yield Change(Op.REMOVE, removed)
        new = tuple(pod for uid, pod in listed.items() if uid not in self._known)
        changed = tuple(pod for uid, pod in listed.items() if uid in self._known)
        self._known = listed
        yield Change(Op.ADD, new)
        if changed:
            yield Change(Op.UPDATE, changed)

    def put(self, pod: Pod) -> Iterator[Change]:
        """Take a pod that was added or changed."""
        namesake = next(
            (
                each
                for each in self._known.values()
                if each.uid != pod.uid and each.full_name == pod.full_name
            ),
            None,
        )
        if namesake is not None:  # its DELETED was missed
            yield from self.drop(namesake)
        op = Op.UPDATE if pod.uid in self._known else Op.ADD
        self._known[pod.uid] = pod
        yield Change(op, (pod,))

    def drop(self, pod: Pod) -> Iterator[Change]:
        """Take a pod that is gone."""
        if self._known.pop(pod.uid, None) is not None:
            yield Change(Op.REMOVE, (pod,))


class PodSource:
    """Follows the pods of one node.

    Args:
        deliver: takes each batch, in order; it may block.
    """

    def __init__(
        self, client: ApiClient, node_name: str, deliver: Callable[[Change], None]
    ) -> None:
        self._deliver = deliver
        self._store = PodStore()
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
        self._emit(self._store.replace(_pods(objects)))

    def _happened(self, kind: str, obj: Json) -> None:
        for pod in _pods([obj]):
            drop = kind == "DELETED"
            self._emit(self._store.drop(pod) if drop else self._store.put(pod))

    def _emit(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._deliver(change)


def _pods(objects: Iterable[Json]) -> Iterator[Pod]:
    for obj in objects:
        try:
            yield parse_pod(obj)
        except InvalidPod as error:
            _log.warning("pod passed over", extra={"reason": str(error)})
