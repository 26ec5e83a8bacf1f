"""Elects the replica that binds, by a Lease of ``coordination.k8s.io``, as client-go does.

:class:`Election` has a lease of its own. :class:`KubeSchedulerLease` only reads the lease of the
kube-scheduler in the same pod, which is the only one that calls this replica.

``kubernetes.leaderelection`` is not used, for four reasons. A broken connection ends its thread (it
catches only ``ApiException``). It can neither be stopped nor release the lease. It measures time by
the wall clock. And it does not return how long the lease is still safe, which decides here whether
a Binding may be started.

Two replicas never bind at the same time. Others may take the lease ``DURATION`` after its last
renewal. The leader starts no Binding with less than ``LONGEST_BINDING`` left, so all its Bindings
have ended by then.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeAlias

from common.apiserver.client import Json
from common.apiserver.errors import REQUEST_ERRORS, Rejected
from scheduler.cluster import LONGEST_BINDING, SchedulerApi

log = logging.getLogger(__name__)

DURATION = 10.0
"""Seconds after which others may take a lease that was not renewed; client-go has 15.

Two renewals may fail. A leader that cannot renew for longer only pauses, because it starts no
Binding with less than ``LONGEST_BINDING`` left.
"""

RETRY = 2.0
"""Seconds between two renewals."""

POLL = 0.5
"""Seconds after which a follower reads the lease again, to notice soon if it is released."""

LAST_REQUESTS = 1.0
"""Seconds in which the last holder's requests may come after it has released its lease.

kube-scheduler releases it just before it exits.
"""


@dataclass(eq=False)
class Election:
    """One replica's part in an election by our own lease. Only one thread may call :meth:`step`.

    Attributes:
        identity: unique name of this replica.
        clock: returns monotonic seconds.
        now: returns the wall-clock time, for humans who read the lease.
        component: the component with which the lease is deleted, by its label.
        holder: holder of the lease when it was last read.
    """

    api: SchedulerApi
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    component: str = "scheduler-extender"
    holder: str = field(default="", init=False)
    _renewed: float | None = field(default=None, init=False)
    _observed: tuple[object, float] = field(init=False)

    def __post_init__(self) -> None:
        self._observed = (None, self.clock())

    def leads_for(self) -> float:
        """Return the seconds for which no other replica can take the lease; 0 if not leading."""
        renewed = self._renewed
        return 0.0 if renewed is None else max(renewed + DURATION - self.clock(), 0.0)

    def acts_for(self) -> float:
        """Return the seconds for which this replica may write unasked: while it leads."""
        return self.leads_for()

    def step(self) -> None:
        """Take or renew the lease, unless another replica has it."""
        started = self.clock()
        try:
            self._renewed = started if self._take() else None
        except REQUEST_ERRORS as error:
            log.warning("lease not taken or renewed", extra={"reason": str(error)})

    def release(self) -> None:
        """Release the lease, so that another replica need not wait until it expires."""
        if self.leads_for() <= 0:
            return
        self._renewed = None
        try:
            lease = self.api.get_lease(self.namespace, self.name)
            if lease is not None and _spec(lease).get("holderIdentity") == self.identity:
                spec = {**_spec(lease), "holderIdentity": "", "leaseDurationSeconds": 1}
                self.api.replace_lease(self.namespace, {**lease, "spec": spec})
        except REQUEST_ERRORS as error:
            log.warning("lease not released", extra={"reason": str(error)})

    def _take(self) -> bool:
        """Take or renew the lease if possible; return whether this replica has it now."""
        lease = self.api.get_lease(self.namespace, self.name)
        if lease is None:
            return self._write(None, self._spec({}, taken=True))
        spec = _spec(lease)
        version = lease["metadata"].get("resourceVersion")
        if version != self._observed[0]:
            self._observed = version, self.clock()
        holder = spec.get("holderIdentity") or ""
        self.holder = str(holder)
        # Only this replica's clock is used, because clocks of two machines may differ.
        expired = self.clock() - self._observed[1] > max(_seconds(spec), 1.0)
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
                            "labels": {
                                "app.kubernetes.io/component": self.component,
                                "app.kubernetes.io/part-of": "gpu-turnstile",
                            },
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


class _Read(NamedTuple):
    """What was read of a lease; replaced as a whole, because other threads ask meanwhile."""

    holder: str = ""
    transitions: object = None
    version: object = None
    started: float = -math.inf
    """When the read started."""
    settled: float = math.inf
    """When all Bindings of the holders before have ended."""
    ends: float = -math.inf
    """Until then nobody else takes the lease, unless it is released."""


@dataclass(eq=False)
class KubeSchedulerLease:
    """Leads while the kube-scheduler in the same pod holds its lease; writes nothing.

    kube-scheduler's identity is ``<host name>_<UUID>`` (``makeLeaderElectionConfig`` in Kubernetes'
    ``cmd/kube-scheduler/app/options/options.go``), and containers of a pod share their host name.
    ``leaseTransitions`` counts each change of the holder, so a term is known by both.

    Bindings of the holders before have ended when this replica leads: without a renewal their
    replicas start none that could end after the term, and after a release it waits for the last.
    Since every replica waits so, what was read stays true for as long, as far as Bindings go.

    Attributes:
        identity: host name of this pod.
        clock: returns monotonic seconds.
    """

    api: SchedulerApi
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    _last: _Read = field(default=_Read(), init=False)

    @property
    def holder(self) -> str:
        """The holder of the lease when it was last read; empty if there was none."""
        return self._last.holder

    def leads_for(self) -> float:
        """Return the seconds for which no other replica can lead; 0 if this one does not."""
        return self._left(LAST_REQUESTS + 2 * LONGEST_BINDING)

    def acts_for(self) -> float:
        """Return the seconds for which this replica may write unasked; 0 if it does not lead.

        The lease may have been released since it was read, and no request shows that it was not. So
        a write must have ended when the next replica may lead.
        """
        return self._left(LAST_REQUESTS + LONGEST_BINDING)

    def _left(self, believed: float) -> float:
        """Return what is left of the term, of which a read proves *believed* seconds."""
        last, now = self._last, self.clock()
        if not self._is_ours(last) or now < last.settled:
            return 0.0
        return max(min(last.ends, last.started + believed) - now, 0.0)

    def step(self) -> None:
        """Read the lease."""
        started = self.clock()
        try:
            lease = self.api.get_lease(self.namespace, self.name) or {"metadata": {}}
        except REQUEST_ERRORS as error:
            log.warning("lease not read", extra={"reason": str(error)})
            return
        last, spec, version = self._last, _spec(lease), lease["metadata"].get("resourceVersion")
        term = str(spec.get("holderIdentity") or ""), spec.get("leaseTransitions")
        settled, ends = last.settled, last.ends
        if term != (last.holder, last.transitions):
            settled = self.clock() + LAST_REQUESTS + LONGEST_BINDING
        if version != last.version:
            # It was renewed after the start of the read before, which did not show that yet.
            ends = last.started + _seconds(spec)
        self._last = _Read(*term, version, started, settled, ends)

    def release(self) -> None:
        """Do nothing: kube-scheduler releases its lease itself."""

    def term(self) -> str:
        """Return the holder if it is the kube-scheduler of this pod, else nothing."""
        last = self._last
        return last.holder if self._is_ours(last) else ""

    def _is_ours(self, read: _Read) -> bool:
        return read.holder.rpartition("_")[0] == self.identity


LeaderElection: TypeAlias = Election | KubeSchedulerLease
"""What decides whether this replica leads. Only one thread may call ``step``."""


def _spec(lease: Json) -> Json:
    spec = lease.get("spec")
    return spec if isinstance(spec, dict) else {}


def _seconds(spec: Json) -> float:
    value = spec.get("leaseDurationSeconds")
    return float(value) if isinstance(value, int) else DURATION
