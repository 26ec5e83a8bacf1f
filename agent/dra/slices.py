"""Publishes the node's ResourceSlices, and makes them again if they are deleted.

A kubelet deletes the slices of its node when it starts. The agent never does, except for those
beyond the number that it needs.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent.dra.devices import manifest, published
from agent.kubernetes_api.client import SLICES, Api
from agent.kubernetes_api.watched_objects import WatchedObjects
from agent.kubernetes_api.write_queue import WriteQueue

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.2, 30.0)
# Until the same specs are written again to existing slices: the watch may not show them yet, or the
# API server drops fields whose feature gate is off.
_AGAIN_SECONDS = 10.0


class SlicePublisher(WriteQueue[str, None]):
    """A queue with one key, the node's pool; its slices are compared at the moment of the write."""

    def __init__(
        self,
        *,
        api: Api,
        node: str,
        driver: str,
        specs: Callable[[], Mapping[str, dict[str, Any]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is written before :meth:`run`.

        *specs* returns the wanted specs by the slices' names.
        """
        super().__init__(backoff=_BACKOFF_SECONDS, on_result=lambda _result: None, clock=clock)
        self.slices = WatchedObjects(
            api,
            SLICES,
            "ResourceSlice",
            fields=f"spec.nodeName={node},spec.driver={driver}",
            on_change=self.poke,
        )
        """The existing ones; they are followed in a thread of its own."""
        self._api = api
        self._node = node
        self._specs = specs
        self._written: Mapping[str, Any] = {}
        self._written_at = -math.inf

    def poke(self) -> None:
        """Report that cards, health or slices may have changed."""
        self._enqueue(self._node, None)

    def _write(self, key: str, item: None) -> float | None:  # noqa: ARG002 -- there is one pool
        wanted = self._specs()
        known = {name: each for (_, name), each in self.slices.objects.items()}
        if not self.slices.synced.is_set():
            return None  # another poke follows
        found = {name: published(each["spec"]) for name, each in known.items()}
        generations = {each["spec"]["pool"]["generation"] for each in known.values()}
        if found == wanted and len(generations) <= 1:  # of several, schedulers take the newest only
            return None
        age = self._clock() - self._written_at
        if wanted == self._written and wanted.keys() <= known.keys() and age < _AGAIN_SECONDS:
            return _AGAIN_SECONDS - age
        generation = max(generations, default=0) + 1
        node_uid = self._api.get_node(self._node)["metadata"]["uid"]
        for name, spec in wanted.items():
            body = manifest(name, spec, generation, node_uid)
            if name in known:
                self._api.patch_slice(name, body)
            else:
                self._api.create_slice(body)
        for name in known.keys() - wanted.keys():
            self._api.delete_slice(name)
        self._written, self._written_at = wanted, self._clock()
        log.info("slices published", extra={"slices": sorted(wanted), "generation": generation})
        return None

    def _log_failure(self, key: str, error: Exception, *, dropped: bool) -> None:  # noqa: ARG002
        log.warning("slices not published, will retry", extra={"node": key, "reason": str(error)})
