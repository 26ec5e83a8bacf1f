"""Who binds: one replica, by a Lease of ``coordination.k8s.io``, as client-go elects a leader.

``kubernetes.leaderelection`` is not used. A connection that breaks ends its thread (it catches
``ApiException`` alone), it cannot be stopped nor give the lease back, it measures time by the wall
clock, and it does not tell how long the lease is safe, which decides here until when a Binding may
be begun.

A replica that has taken the lease writes from then on, and one that holds it stops while nobody
else can have it yet: ``DURATION`` after its last renewal others may take it, and until then every
Binding that it began is over, because none is begun with less than ``BIND_SECONDS`` left.
"""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Protocol

from common.apiserver.client import Json
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable

log = logging.getLogger(__name__)

DURATION = 10.0
"""Seconds after which a lease that was not renewed may be taken; client-go's 15 keep pods waiting.

Two renewals may fail: none is begun with less than ``BIND_SECONDS`` left, so a leader that cannot
renew for longer pauses, and nothing worse.
"""

RETRY = 2.0
"""Seconds between two renewals."""

LOOK = 0.5
"""Seconds between two looks of a replica that follows: a lease that is released is seen soon."""

_LABELS = {
    "app.kubernetes.io/component": "scheduler-extender",
    "app.kubernetes.io/part-of": "gpu-turnstile",
}
"""By which the lease is deleted with the component."""

FAILURES = (Gone, Rejected, Unavailable)


class LeaseApi(Protocol):
    """The part of the API that leases are in."""

    def get_lease(self, namespace: str, name: str) -> Json | None:
        """Get a lease; ``None`` when there is none."""
        ...

    def create_lease(self, namespace: str, lease: Json) -> None:
        """Create a lease."""
        ...

    def replace_lease(self, namespace: str, lease: Json) -> None:
        """Replace a lease, if it is still the one that was read."""
        ...


@dataclass(eq=False)
class Election:
    """One replica's part in the election. :meth:`step` belongs to one thread.

    Attributes:
        api: where the lease is.
        namespace: of the lease.
        name: of the lease.
        identity: of this replica, unlike that of any other.
        clock: seconds, monotonic.
        now: returns the present, for people who read the lease.
        holder: of the lease, when it was last seen.
    """

    api: LeaseApi
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    holder: str = field(default="", init=False)
    _renewed: float | None = field(default=None, init=False)
    _seen: tuple[object, float] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = (None, self.clock())

    def leads_for(self) -> float:
        """Return the seconds for which nobody else can have the lease; 0 when not leading."""
        renewed = self._renewed
        return 0.0 if renewed is None else max(renewed + DURATION - self.clock(), 0.0)

    def step(self) -> None:
        """Take the lease, renew it, or find that somebody else has it."""
        began = self.clock()
        try:
            self._renewed = began if self._take() else None
        except FAILURES as error:
            log.warning("the lease could not be had", extra={"reason": str(error)})

    def release(self) -> None:
        """Release the lease, so that another replica need not wait for its end."""
        if self.leads_for() <= 0:
            return
        self._renewed = None
        try:
            lease = self.api.get_lease(self.namespace, self.name)
            if lease is not None and _spec(lease).get("holderIdentity") == self.identity:
                spec = {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
                self.api.replace_lease(self.namespace, {**lease, "spec": spec})
        except FAILURES as error:
            log.warning("the lease could not be given back", extra={"reason": str(error)})

    def _take(self) -> bool:
        """Return whether this replica has the lease now."""
        lease = self.api.get_lease(self.namespace, self.name)
        if lease is None:
            return self._write(None, self._spec({}, taken=True))
        spec = _spec(lease)
        version = lease["metadata"].get("resourceVersion")
        if version != self._seen[0]:
            self._seen = version, self.clock()
        holder = spec.get("holderIdentity") or ""
        self.holder = str(holder)
        # By this clock alone: clocks of two machines need not agree.
        expired = self.clock() - self._seen[1] > max(_seconds(spec), 1.0)
        if holder and holder != self.identity and not expired:
            return False
        return self._write(lease, self._spec(spec, taken=holder != self.identity))

    def _write(self, lease: Json | None, spec: Json) -> bool:
        try:
            if lease is None:
                self.api.create_lease(
                    self.namespace,
                    {
                        "apiVersion": "coordination.k8s.io/v1",
                        "kind": "Lease",
                        "metadata": {
                            "name": self.name,
                            "namespace": self.namespace,
                            "labels": _LABELS,
                        },
                        "spec": spec,
                    },
                )
            else:
                self.api.replace_lease(self.namespace, {**lease, "spec": spec})
        except Rejected as error:
            if error.status == 409:
                return False  # another replica was faster
            raise
        self.holder = self.identity
        return True

    def _spec(self, before: Json, *, taken: bool) -> Json:
        now = self.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        transitions = before.get("leaseTransitions")
        count = transitions if isinstance(transitions, int) else 0
        return {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION),
            "acquireTime": now if taken else before.get("acquireTime") or now,
            "renewTime": now,
            "leaseTransitions": count + (taken and bool(before)),
        }


def _spec(lease: Json) -> Json:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _seconds(spec: Json) -> float:
    value = spec.get("leaseDurationSeconds")
    return float(value) if isinstance(value, int) else DURATION
