"""Write allocations to pods, by a queue that retries, never inside a call of the kubelet."""

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from common.backoff import pause_after
from contract.allocation import Allocation, encode_allocations
from contract.demand import ContainerKind, PodDemand
from contract.names import Names
from contract.pod_annotations import write_choice
from placement.pods import PodId, PodInfo

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 30.0)
_MOST_REMEMBERED = 4096
# For so long the watch may show a pod without what was just written to it. After that somebody has
# taken the annotation away, and it is written again.
_REMEMBERED_SECONDS = 60.0

# Only a pod that is gone needs no annotation. Anything else may pass: permissions come after the
# agent (401, 403), an admin corrects the policy that refuses a patch (422), servers recover.
_NOT_FOUND, _CONFLICT = 404, 409


class PatchApi(Protocol):
    """The part of the API that allocations are written through."""

    def patch_pod(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to a pod."""

    def get_pod(self, namespace: str, name: str) -> Json | None:
        """Get one pod; ``None`` when there is none."""


def allocation_patch(
    view: PodInfo,
    allocations: Mapping[str, Allocation],
    *,
    names: Names,
    indices: Mapping[str, int],
) -> dict[str, Any]:
    """Make the merge patch that writes what a pod got.

    The UID in it makes the API server refuse (409) when a successor of the same name has
    come meanwhile. *indices* are those of the cards, by UUID.
    """
    annotations = {names.gpu_allocation: encode_allocations(allocations)}
    if is_complete(view.demand, allocations):
        annotations[names.gpu_assigned] = "true"
    for container in view.demand.containers:
        allocation = allocations.get(container.name)
        if allocation is not None:
            annotations[names.predicate_gpu_idx(container.ordinal)] = write_choice(
                indices[card] for card in allocation.cards if card in indices
            )
    return {"metadata": {"uid": view.id.uid, "annotations": annotations}}


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A patch that is to be written.

    Attributes:
        patch: the patch.
        due: when it may be tried, by the clock.
        tries: how often it has failed.
    """

    patch: Json
    due: float
    tries: int = 0


class PatchQueue:
    """The queue: one thread writes, the newest allocation of a pod replaces older ones."""

    def __init__(
        self,
        *,
        api: PatchApi,
        names: Names,
        indices: Mapping[str, int],
        on_result: Callable[[str], None] = lambda _result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty; *indices* are those of the cards, by UUID.

        *on_result* is told ``written``, ``retried`` or ``dropped``.
        """
        self._api = api
        self._names = names
        self._indices = indices
        self._on_result = on_result
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = False
        self._waiting: dict[PodId, _Waiting] = {}
        self._written: dict[PodId, tuple[Json, float]] = {}
        self._told: dict[PodId, dict[str, Allocation]] = {}

    def put(self, view: PodInfo, allocations: Mapping[str, Allocation]) -> None:
        """Queue a pod's allocation; the same one again is ignored.

        A container that was told of before stays in the annotation. The kubelet frees what an
        init container had (K4, K15), and the watch may show the annotation later than that.
        """
        with self._changed:
            allocations = {**self._told.pop(view.id, {}), **allocations}
            self._told[view.id] = allocations
            while len(self._told) > _MOST_REMEMBERED:
                del self._told[next(iter(self._told))]
            patch = allocation_patch(view, allocations, names=self._names, indices=self._indices)
            waiting = self._waiting.get(view.id)
            if patch == (waiting.patch if waiting else self._just_written(view.id)):
                return
            self._waiting[view.id] = _Waiting(patch, self._clock())
            self._changed.notify()

    def pending(self) -> int:
        """Count what is not written yet."""
        with self._changed:
            return len(self._waiting)

    def stop(self) -> None:
        """Make :meth:`run` return; what is unwritten is made again from the kubelet's record."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Write until stopped."""
        while (due := self._next()) is not None:
            pod, patch = due
            try:
                self._write(pod, patch)
            except Exception:  # of one pod, which must not end the writing for all
                log.exception("allocation failed", extra={"pod": str(pod)})
                self._put_off(pod)

    def _write(self, pod: PodId, patch: Json) -> None:
        try:
            self._api.patch_pod(pod.namespace, pod.name, patch)
        except (Rejected, Gone, Unavailable) as error:
            if not self._is_gone(pod, error):
                log.warning("allocation waits", extra={"pod": str(pod), "reason": str(error)})
                self._put_off(pod)
                return
            log.info("allocation not written", extra={"pod": str(pod), "reason": str(error)})
            self._done(pod, patch)
            self._on_result("dropped")
        else:
            with self._changed:  # what was dropped may be queued again
                self._done(pod, patch)
                self._written.pop(pod, None)
                self._written[pod] = patch, self._clock()
                while len(self._written) > _MOST_REMEMBERED:
                    del self._written[next(iter(self._written))]
            self._on_result("written")

    def _is_gone(self, pod: PodId, error: Exception) -> bool:
        """Return whether a failed write can never succeed, because its pod is gone.

        A conflict (409) has two causes: a successor has the name now, or somebody else wrote at
        the same moment. Only the pod as it is now tells them apart.
        """
        if not isinstance(error, Rejected):
            return isinstance(error, Gone)
        if error.status != _CONFLICT:
            return error.status == _NOT_FOUND
        try:
            found = self._api.get_pod(pod.namespace, pod.name)
        except Unavailable:
            return False
        return found is None or found["metadata"].get("uid") != pod.uid

    def _next(self) -> tuple[PodId, Json] | None:
        with self._changed:
            while not self._stopping:
                now = self._clock()
                first = min(((each.due, pod) for pod, each in self._waiting.items()), default=None)
                if first is not None and first[0] <= now:
                    return first[1], self._waiting[first[1]].patch
                self._changed.wait(first[0] - now if first is not None else None)
            return None

    def _done(self, pod: PodId, patch: Json) -> None:
        with self._changed:
            if self._waiting[pod].patch is patch:  # else a newer one came while this was written
                del self._waiting[pod]

    def _just_written(self, pod: PodId) -> Json | None:
        patch, at = self._written.get(pod, (None, 0.0))
        return patch if self._clock() - at < _REMEMBERED_SECONDS else None

    def _put_off(self, pod: PodId) -> None:
        self._on_result("retried")
        with self._changed:
            waiting = self._waiting[pod]
            tries = waiting.tries + 1
            due = self._clock() + pause_after(tries, *_BACKOFF_SECONDS)
            self._waiting[pod] = replace(waiting, due=due, tries=tries)


def is_complete(demand: PodDemand, allocations: Container[str]) -> bool:
    """Return whether these are all of a pod's containers.

    An ordinary init container may be missing once a later container is there: nobody can
    tell any more what it got (fact K4). A pod that asks for nothing has no allocation.
    """
    missing = [each for each in demand.containers if each.name not in allocations]
    if not missing:
        return bool(demand)
    others = any(each.kind is not ContainerKind.INIT for each in demand.containers)
    return others and all(each.kind is ContainerKind.INIT for each in missing)
