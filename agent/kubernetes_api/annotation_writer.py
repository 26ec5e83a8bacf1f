"""Writes allocation annotations to pods, by a queue that retries, not in calls of the kubelet."""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from http import HTTPStatus
from typing import Any

from agent.errors import Unavailable
from agent.holdings.annotation import needs_annotation
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.write_queue import HopelessWrite, WriteQueue, remember
from contract.allocation import Allocation, encode_allocations
from contract.demand import ContainerKind, PodDemand
from contract.names import Names
from contract.pod_annotations import write_choice
from placement.pods import PodId, PodInfo

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.1, 30.0)
# For so long the watch may show a pod without the annotation that was just written. If it is
# missing later, somebody has removed it, and it is written again.
_REMEMBERED_SECONDS = 60.0


def allocation_patch(
    info: PodInfo,
    allocations: Mapping[str, Allocation],
    *,
    names: Names,
    indices: Mapping[str, int],
) -> dict[str, Any]:
    """Make the merge patch that writes a pod's allocations.

    It has the pod's UID, so the API server rejects it (409) if another pod has the name meanwhile.
    *indices* are those of the cards, by UUID.
    """
    annotations = {names.gpu_allocation: encode_allocations(allocations)}
    if is_complete(info.demand, allocations):
        annotations[names.gpu_assigned] = "true"
    for container in info.demand.containers:
        allocation = allocations.get(container.name)
        if allocation is not None:
            annotations[names.predicate_gpu_idx(container.ordinal)] = write_choice(
                indices[card] for card in allocation.cards if card in indices
            )
    return {"metadata": {"uid": info.id.uid, "annotations": annotations}}


class PatchQueue(WriteQueue[PodId, Json]):
    """The queue of allocation annotations: the newest of a pod replaces older ones."""

    def __init__(
        self,
        *,
        api: Api,
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
        self._recent: OrderedDict[PodId, tuple[dict[str, Allocation], float]] = OrderedDict()

    def put(self, info: PodInfo, allocations: Mapping[str, Allocation]) -> None:
        """Queue a pod's allocations; an equal one is ignored for a while.

        Containers that were queued before stay in the annotation: the kubelet frees the devices of
        an init container (K4, K15), possibly before the watch shows the annotation. Their evidence
        stays too, unless it was a guess: what is read from the kubelet later is always `record`.
        """
        with self._changed:
            before, at = self._recent.get(info.id, ({}, -math.inf))
            changed = {
                name: allocation
                for name, allocation in allocations.items()
                if needs_annotation({name: allocation}, before)
            }
            allocations, now = {**before, **changed}, self._clock()
            if allocations == before and now - at < _REMEMBERED_SECONDS:
                return
            remember(self._recent, info.id, (allocations, now))
            patch = allocation_patch(info, allocations, names=self._names, indices=self._indices)
            self._enqueue(info.id, patch)

    def _write(self, key: PodId, item: Json) -> None:
        try:
            self._api.patch_pod(key.namespace, key.name, item)
        except (Rejected, Gone) as error:
            if not self._is_pod_deleted(key, error):
                raise
            with self._changed:  # an equal allocation may be queued again
                if key in self._recent:
                    self._recent[key] = self._recent[key][0], -math.inf
            raise HopelessWrite(str(error)) from error

    def _log_failure(self, key: PodId, error: Exception, *, dropped: bool) -> None:
        extra = {"pod": str(key), "reason": str(error)}
        if dropped:
            log.info("allocation write dropped", extra=extra)
        else:
            log.warning("allocation write failed, will retry", extra=extra)

    def _is_pod_deleted(self, pod: PodId, error: Rejected | Gone) -> bool:
        """Return whether a failed write can never succeed, because its pod is deleted.

        Other failures are temporary: permissions are granted later (401, 403), or an admin corrects
        the policy that rejects a patch (422). A conflict (409) has two causes: another pod has the
        name now, or another client wrote at the same moment. Only reading the pod distinguishes
        them.
        """
        if isinstance(error, Gone) or error.status != HTTPStatus.CONFLICT:
            return isinstance(error, Gone) or error.status == HTTPStatus.NOT_FOUND
        try:
            found = self._api.get_pod(pod.namespace, pod.name)
        except Unavailable:
            return False
        return found is None or found["metadata"].get("uid") != pod.uid


def is_complete(demand: PodDemand, allocations: Container[str]) -> bool:
    """Return whether *allocations* has all of a pod's containers.

    An ordinary init container may be missing if a later container is there: its devices cannot be
    known any more (fact K4). A pod that requests nothing has no allocation.
    """
    missing = [each for each in demand.containers if each.name not in allocations]
    if not missing:
        return bool(demand)
    others = any(each.kind is not ContainerKind.INIT for each in demand.containers)
    return others and all(each.kind is ContainerKind.INIT for each in missing)
