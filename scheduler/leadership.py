"""Leadership of one replica: when it may bind, and how kube-scheduler reaches it.

All replicas follow the cluster and are ready. kube-scheduler uses one address, and a Binding must
reach the leader. So the Service has no selector, and the leader writes its own address into the
EndpointSlice. If only the leader were ready, a Deployment would never be complete, and its rolling
update would wait forever. In the pod of a kube-scheduler there is neither: only that one calls.

A new leader binds only after it has listed the pods again, because its watch may not show the last
Bindings of the leader before it. That leader started no Binding that could end after its term.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS
from common.backoff import spread
from scheduler.cluster import EVICT_SECONDS, LONGEST_BINDING, SchedulerApi
from scheduler.election import POLL, RETRY, LeaderElection
from scheduler.following import Watches

log = logging.getLogger(__name__)

_TICK = 0.2
_PUBLISH_SECONDS = 10.0
"""Seconds between two checks of the EndpointSlice: applying the manifests again empties it."""


@dataclass(frozen=True, kw_only=True)
class LeaderEndpoint:
    """The EndpointSlice of the Service, with the leader's address.

    Attributes:
        name: name of the EndpointSlice for IPv4; the one for IPv6 ends in ``-ipv6``, because the
            address type of a slice cannot be changed. If it is empty, nothing is written.
    """

    api: SchedulerApi
    namespace: str
    name: str
    address: str
    port: int

    def publish(self) -> None:
        """Write this replica as the only endpoint, unless it is so already."""
        if not self.name:
            return
        wanted: Json = {
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": self.port, "protocol": "TCP"}],
        }
        name = f"{self.name}-ipv6" if ":" in self.address else self.name
        try:
            found = self.api.get_slice(self.namespace, name)
            if _addresses(found) != [self.address]:
                self.api.patch_slice(self.namespace, name, wanted)
                log.info("endpoint written", extra={"address": self.address})
        except REQUEST_ERRORS as error:
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
    """The loop that takes part in the election and publishes the leader."""

    def __init__(
        self,
        election: LeaderElection | None,
        watches: Watches,
        endpoint: LeaderEndpoint,
        *,
        clock: Callable[[], float],
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; no request is sent before :meth:`run`.

        *election* is ``None`` if this is the only replica. *watches* must be in step before it
        binds.
        """
        self._election = election
        self._wait = wait
        self._watches = watches
        self._endpoint = endpoint
        self._clock = clock
        self._list_number: int | None = 0 if election is None else None
        self._in_step = False
        self._ended = threading.Event()
        self._follows = False

    @property
    def leads(self) -> bool:
        """Whether this replica has the lease."""
        return self._election is None or self._election.leads_for() > 0

    def not_binding(self) -> str:
        """Return why this replica must not bind now; empty if it may."""
        if self._ended.is_set():
            return "shutting down"
        if self._election is not None and self._election.leads_for() <= LONGEST_BINDING:
            # What was read may be old: this replica's own lease may have expired since.
            holder = self._election.holder or "no replica"
            return f"not the leader: {holder} held the lease when it was last read"
        if not self._in_step:
            return "the leader is not ready yet: pods are being listed"
        return ""

    def not_acting(self) -> str:
        """Return why this replica must write nothing unasked; empty if it may start a write now.

        Waits for the next read of the lease, if it is too long ago.
        """
        deadline = self._clock() + 2 * RETRY
        while True:
            why = self.not_binding()
            if why or self._election is None or self._election.acts_for() > EVICT_SECONDS:
                return why
            if self._clock() >= deadline:
                return f"the lease was not read for {2 * RETRY:.0f} s"
            self._wait(_TICK)

    def run(self, stop: threading.Event) -> None:
        """Take part in the election until *stop*, and start the watches."""
        next_step = next_publish = self._clock()
        while not stop.is_set():
            now = self._clock()
            if now >= next_step:
                self._step()
                next_step = now + spread(RETRY if self.leads else POLL)
            if self._became_ready():
                next_publish = now
            if self._in_step and now >= next_publish:
                self._endpoint.publish()
                next_publish = now + _PUBLISH_SECONDS
            stop.wait(_TICK)

    def end(self, *, is_binding: Callable[[], bool] = lambda: False) -> None:
        """Start no more Bindings, wait for those in progress, and release the lease.

        Otherwise one of them could take effect after the next leader has listed the pods.

        Args:
            is_binding: returns whether a Binding is in progress.
        """
        self._ended.set()
        deadline = self._clock() + LONGEST_BINDING
        while is_binding() and self._clock() < deadline:
            self._wait(_TICK / 4)
        if self._election is not None:
            self._election.release()

    def _step(self) -> None:
        if self._election is not None:
            led_before = self._list_number is not None
            self._election.step()
            if self.leads and not led_before:
                log.info("leading", extra={"lease": self._election.holder})
                self._list_number = self._watches.list_pods_again()
            elif led_before and not self.leads:
                log.warning("not leading any more", extra={"lease": self._election.holder})
                self._list_number, self._in_step = None, False
        if not self._follows:
            # Only now, so that a leader need not list again what it listed without the lease.
            self._follows = True
            self._watches.start()

    def _became_ready(self) -> bool:
        if self._list_number is None or self._in_step:
            return False
        self._in_step = self._watches.has_listed(self._list_number)
        if self._in_step:
            log.info("binding")
        return self._in_step
