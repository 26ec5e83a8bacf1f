"""Write allocations to pods, by a queue that retries, never inside a call of the kubelet."""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from agent.allocator.grants import is_news
from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from agent.kubernetes_api.write_queue import HopelessWrite, WriteQueue, remember
from contract.allocation import Allocation, encode_allocations
from contract.demand import ContainerKind, PodDemand
from contract.names import Names
from contract.pod_annotations import write_choice
from placement.pods import PodId, PodInfo

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 30.0)
# For so long the watch may show a pod without what was just written to it. After that somebody has
# taken the annotation away, and it is written again.
_REMEMBERED_SECONDS = 60.0


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


class PatchQueue(WriteQueue[PodId, Json]):
    """The queue of allocations: the newest of a pod replaces older ones."""

    def __init__(
        self,
        *,
        api: PatchApi,
        names: Names,
        indices: Mapping[str, int],
        on_result: Callable[[str], None] = lambda _result: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start empty; *indices* are those of the cards, by UUID."""
        super().__init__(backoff=_BACKOFF_SECONDS, on_result=on_result, clock=clock)
        self._api = api
        self._names = names
        self._indices = indices
        self._put: OrderedDict[PodId, tuple[dict[str, Allocation], float]] = OrderedDict()

    def put(self, view: PodInfo, allocations: Mapping[str, Allocation]) -> None:
        """Queue a pod's allocation; the same one again is ignored for a while.

        A container that was put before stays in the annotation. The kubelet frees what an
        init container had (K4, K15), and the watch may show the annotation later than that. So
        does its evidence, unless it was a guess: later on everything is from the kubelet.
        """
        with self._changed:
            before, at = self._put.get(view.id, ({}, -math.inf))
            news = {name: got for name, got in allocations.items() if is_news({name: got}, before)}
            allocations, now = {**before, **news}, self._clock()
            if allocations == before and now - at < _REMEMBERED_SECONDS:
                return
            remember(self._put, view.id, (allocations, now))
            patch = allocation_patch(view, allocations, names=self._names, indices=self._indices)
            self._enqueue(view.id, patch)

    def _write(self, key: PodId, item: Json) -> None:
        try:
            self._api.patch_pod(key.namespace, key.name, item)
        except (Rejected, Gone) as error:
            if not self._is_gone(key, error):
                raise
            with self._changed:  # what is dropped may be queued again
                if key in self._put:
                    self._put[key] = self._put[key][0], -math.inf
            raise HopelessWrite(str(error)) from error

    def _log_failure(self, key: PodId, error: Exception, *, dropped: bool) -> None:
        extra = {"pod": str(key), "reason": str(error)}
        if dropped:
            log.info("allocation not written", extra=extra)
        else:
            log.warning("allocation waits", extra=extra)

    def _is_gone(self, pod: PodId, error: Rejected | Gone) -> bool:
        """Return whether a failed write can never succeed, because its pod is gone.

        Anything else may pass: permissions come after the agent (401, 403), an admin corrects the
        policy that refuses a patch (422). A conflict (409) has two causes: a successor has the
        name now, or somebody else wrote at the same moment. Only the pod as it is now tells them
        apart.
        """
        if isinstance(error, Gone) or error.status != HTTPStatus.CONFLICT:
            return isinstance(error, Gone) or error.status == HTTPStatus.NOT_FOUND
        try:
            found = self._api.get_pod(pod.namespace, pod.name)
        except Unavailable:
            return False
        return found is None or found["metadata"].get("uid") != pod.uid


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
