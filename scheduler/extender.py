"""Assembles one replica: state, watches, election and the handler of requests. No HTTP."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from common.replica import Replica
from scheduler.binding import Binder
from scheduler.cluster import SchedulerApi
from scheduler.decisions import Decisions
from scheduler.election import Election, KubeSchedulerLease, LeaderElection
from scheduler.following import Watches
from scheduler.handler import NOT_IN_STEP, ExtenderHandler
from scheduler.leadership import LeaderEndpoint, Leadership
from scheduler.metrics import Metrics
from scheduler.preemption import Preemption
from scheduler.settings import Settings
from scheduler.state import State

PATIENCE = 9.0
"""Seconds for which a Binding waits until this replica may bind, if no other one can be asked."""


class Extender(Replica):
    """The parts of one replica, and their threads."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the credentials; no request is sent before :meth:`start`.

        *clock*, monotonic seconds, is that of the leadership and of all that waits for it.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        self.state = State(settings.names, settings.policy, preempts=settings.preempt)
        self.metrics = metrics
        self._cluster = SchedulerApi(settings.kubeconfig, bindings=settings.threads)
        self.watches = Watches(self.state, self._cluster, workloads=settings.workloads)
        election: LeaderElection | None = None
        beside = None
        if settings.kube_scheduler_lease:
            election = beside = KubeSchedulerLease(
                self._cluster,
                namespace=settings.namespace,
                name=settings.kube_scheduler_lease,
                identity=settings.identity,
                clock=clock,
            )
        elif settings.lease:
            election = Election(
                self._cluster,
                namespace=settings.namespace,
                name=settings.lease,
                identity=f"{settings.identity}_{secrets.token_hex(4)}",
                clock=clock,
                now=lambda: datetime.now(UTC),
            )
        endpoint = LeaderEndpoint(
            api=self._cluster,
            namespace=settings.namespace,
            name=settings.endpoint_slice,
            address=settings.address,
            port=settings.port,
        )
        self.leadership = Leadership(election, self.watches, endpoint, clock=clock)
        self._binder = Binder(
            self.state,
            self._cluster,
            most=2 * settings.threads,  # so many wait for the API server, as many for a thread
            on_result=self.metrics.bound,
        )
        self._preemption = Preemption(
            self.state,
            self._cluster,
            not_leading=self.leadership.not_acting,
            on_result=self.metrics.preempted,
            on_victim=self.metrics.evicted,
        )
        self.handler = ExtenderHandler(
            decisions=Decisions(self.state, settings.node_policy),
            binder=self._binder,
            names=settings.names,
            metrics=self.metrics,
            in_step=lambda: self.watches.in_step,
            not_binding=self.leadership.not_binding,
            patience=PATIENCE if beside else 0.0,
            term=beside.term if beside else lambda: "",
            preemptors=self._preemption.preemptors if settings.preempt else None,
            refused=self._preemption.refused,
            read_enough=self._cluster.read_enough,
            clock=clock,
        )
        export_gauges(
            self.metrics,
            self.state,
            leads=lambda: not self.leadership.not_binding(),
            in_step=lambda: self.watches.in_step,
        )
        super().__init__(
            self.watches,
            close=self._cluster.close,
            unlisted=NOT_IN_STEP,
            leadership=self.leadership.run,
            preemption=self._preemption.run,
        )

    def finish(self) -> None:
        """Stop binding, and release the lease."""
        self.leadership.end(is_binding=self._is_writing)

    def _is_writing(self) -> bool:
        return self._binder.is_binding or self._preemption.is_writing


def export_gauges(
    metrics: Metrics, state: State, *, leads: Callable[[], bool], in_step: Callable[[], bool]
) -> None:
    """Export the gauges that are computed at each scrape."""
    assumed = "Pods bound by this replica that the watch does not show yet."
    for name, text, value in (
        ("leader", "1 while this replica binds.", leads),
        ("in_step", "1 while nodes and pods are listed and watched.", in_step),
        ("known_nodes", "Known nodes.", lambda: state.counts[0]),
        ("known_pods", "GPU pods that count on a node.", lambda: state.counts[1]),
        ("assumed_pods", assumed, lambda: state.assumed),
        ("preempts", "1 if it evicts pods for others (--preempt).", lambda: state.preempts),
        ("nominated_pods", "Pods for which others are evicted.", lambda: state.nominated),
        ("promised_workloads", "Workloads for which cards are kept.", lambda: state.promised),
    ):
        metrics.export(name, text, value)
