"""Where pods come from: list, then watch; what changed is handed on, one batch at a time."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from common.backoff import Backoff
from simulator.client import ApiError, Json
from simulator.kubelet.api import PODS, NodeApi
from simulator.kubelet.errors import InvalidPod
from simulator.kubelet.pods import Pod, parse_pod

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


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
    """Keeps a list and watch going, over outages and 410s, until stopped.

    Args:
        api: the API server.
        node_name: whose pods.
        deliver: takes each batch, in order; it may block.
        stop: ends it.
    """

    def __init__(
        self,
        api: NodeApi,
        node_name: str,
        deliver: Callable[[Change], None],
        stop: threading.Event,
    ) -> None:
        self._api = api
        self._selector = f"spec.nodeName={node_name}"
        self._deliver = deliver
        self._stop = stop
        self._store = PodStore()

    def run(self) -> None:
        """List and watch until stopped."""
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._list()
                version = self._watch(version)
                # A server that ends every watch at once must not be asked in a tight loop.
                pauses.reset()
                self._stop.wait(pauses.next())
            except ApiError as error:
                if error.status == 410:
                    version = ""
                    continue
                _log.warning(
                    "no pods from the API server",
                    extra={"selector": self._selector, "reason": str(error)},
                )
                self._stop.wait(pauses.next())

    def _list(self) -> str:
        listed = self._api.list(PODS, fieldSelector=self._selector, resourceVersion="0")
        self._emit(self._store.replace(_pods(listed["items"])))
        return str(listed["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        events = self._api.watch(
            PODS, resource_version=version, field_selector=self._selector, stop=self._stop
        )
        for event in events:
            if self._stop.is_set():
                break
            version = event.resource_version
            if event.type == "BOOKMARK":
                continue
            for pod in _pods([event.object]):
                drop = event.type == "DELETED"
                self._emit(self._store.drop(pod) if drop else self._store.put(pod))
        return version

    def _emit(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._deliver(change)


def _pods(objects: Iterable[Json]) -> Iterator[Pod]:
    for obj in objects:
        try:
            yield parse_pod(obj)
        except InvalidPod as error:
            _log.warning("pod passed over", extra={"reason": str(error)})
