"""One replica's term as leader: when it may bind, and where kube-scheduler finds it.

All replicas follow the cluster and are ready. kube-scheduler knows one address, and a Binding must
reach the replica that may make it; so the Service has no selector, and the leader writes itself
into its EndpointSlice. Were readiness to mean leadership instead, a Deployment would never be
complete, and its rolling update would wait for ever.

A new leader binds only after it has listed the pods anew: what the one before it bound in its last
moment is in no watch yet, and it began no Binding that could end after its term.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.apiserver.client import Json
from common.backoff import spread
from scheduler.cluster import BIND_SECONDS
from scheduler.election import FAILURES, LOOK, RETRY, Election
from scheduler.following import Watches

log = logging.getLogger(__name__)

_TICK = 0.2
_LOOK_SECONDS = 10.0
"""Between two looks at the EndpointSlice: who applies the manifests again empties it."""


class SliceApi(Protocol):
    """The part of the API that the EndpointSlice is in."""

    def get_slice(self, namespace: str, name: str) -> Json:
        """Get it."""
        ...

    def patch_slice(self, namespace: str, name: str, patch: Json) -> None:
        """Apply a merge patch to it."""
        ...


@dataclass(frozen=True, kw_only=True)
class LeaderEndpoint:
    """The EndpointSlice of the Service, in which the leader stands.

    Attributes:
        api: where it is.
        namespace: of the slice.
        name: of the slice; without one nothing is written.
        address: the leader's IP.
        port: the leader's port.
    """

    api: SliceApi
    namespace: str
    name: str
    address: str
    port: int

    def publish(self) -> None:
        """Write this replica as the only endpoint, unless it is that already."""
        if not self.name:
            return
        wanted: Json = {
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
        }
        try:
            found = self.api.get_slice(self.namespace, self.name)
            if _addresses(found) != [self.address]:
                self.api.patch_slice(self.namespace, self.name, wanted)
                log.info("endpoint written", extra={"address": self.address})
        except FAILURES as error:
            log.warning("endpoint not written", extra={"reason": str(error)})


def _addresses(found: Json) -> list[str]:
    endpoints = found.get("endpoints")
    return [
        address
        for each in (endpoints if isinstance(endpoints, list) else ())
        if isinstance(each, dict)
        for address in each.get("addresses") or ()
    ]


class Leadership:
    """The loop that takes part in the election, and what follows from it."""

    def __init__(
        self,
        election: Election | None,
        watches: Watches,
        endpoint: LeaderEndpoint,
        *,
        clock: Callable[[], float],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; nothing is asked before :meth:`run`.

        Args:
            election: ``None`` where this is the only replica.
            watches: to be in step.
            endpoint: where the leader is found.
            clock: seconds, monotonic.
            wait: waits for seconds.
        """
        self._election = election
        self._wait = wait
        self._watches = watches
        self._endpoint = endpoint
        self._clock = clock
        self._asked: int | None = 0 if election is None else None
        self._in_step = False
        self._ended = threading.Event()
        self.first_step = threading.Event()

    @property
    def leads(self) -> bool:
        """Whether this replica has the lease."""
        return self._election is None or self._election.leads_for() > 0

    def not_binding(self) -> str:
        """Return why this replica must not bind now; empty when it may."""
        if self._ended.is_set():
            return "shutting down"
        if self._election is not None and self._election.leads_for() <= BIND_SECONDS:
            holder = self._election.holder
            return f"not the leader: {holder or 'nobody'} holds the lease"
        if not self._in_step:
            return "the leader is not in step yet: pods are being listed"
        return ""

    def run(self, stop: threading.Event) -> None:
        """Take part until *stop*."""
        due = look = self._clock()
        while not stop.is_set():
            now = self._clock()
            if now >= due:
                self._step()
                due = now + spread(RETRY if self.leads else LOOK)
            if self._became_ready():
                look = now
            if self._in_step and now >= look:
                self._endpoint.publish()
                look = now + _LOOK_SECONDS
            stop.wait(_TICK)

    def end(self, *, is_binding: Callable[[], bool] = lambda: False) -> None:
        """Begin no more Bindings, wait for those under way, and release the lease.

        The next leader would list the pods, and then one of these could still take effect.

        Args:
            is_binding: whether a Binding is under way.
        """
        self._ended.set()
        latest = self._clock() + BIND_SECONDS  # by when the API server has given up each
        while is_binding() and self._clock() < latest:
            self._wait(_TICK / 4)
        if self._election is not None:
            self._election.release()

    def _step(self) -> None:
        if self._election is not None:
            led = self._asked is not None
            self._election.step()
            if self.leads and not led:
                log.info("leading", extra={"lease": self._election.holder})
                self._asked = self._watches.list_pods_again()
            elif led and not self.leads:
                log.warning("not leading any more", extra={"lease": self._election.holder})
                self._asked, self._in_step = None, False
        self.first_step.set()

    def _became_ready(self) -> bool:
        if self._asked is None or self._in_step:
            return False
        self._in_step = self._watches.has_listed(self._asked)
        if self._in_step:
            log.info("binding")
        return self._in_step
