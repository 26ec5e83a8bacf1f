"""Assembles one replica: state, watches, election, the checker, probes and metrics."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from common.replica import StatusReplica
from gates.checker import Checker
from gates.cluster import GateApi, follow
from gates.metrics import Metrics
from gates.settings import Settings
from gates.state import GateState
from scheduler.election import Election
from scheduler.leadership import LeaderEndpoint, Leadership


class GatesProgram(StatusReplica):
    """The parts of one replica, and their threads."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the credentials; no request is sent before :meth:`start`.

        Raises:
            SettingsError: the credentials cannot be used.
        """
        metrics, api = Metrics(), GateApi(settings.kubeconfig)
        state = self.state = GateState(settings.names, settings.policy)
        watches = follow(state, api)
        election = Election(
            api,
            namespace=settings.namespace,
            name=settings.lease,
            identity=f"{settings.identity}_{secrets.token_hex(4)}",
            clock=clock,
            now=lambda: datetime.now(UTC),
            component="scheduler-queues",
        )
        nowhere = LeaderEndpoint(api=api, namespace=settings.namespace, name="", address="", port=0)
        self.leadership = Leadership(election, watches, nowhere, clock=clock)
        self._checker = Checker(
            state,
            api,
            not_leading=self.leadership.not_acting,
            node_policy=settings.node_policy,
            keep=settings.keep,
            retry=settings.retry,
            longest_retry=settings.longest_retry,
            on_result=metrics.answered,
        )
        export_gauges(
            metrics,
            state,
            leads=lambda: not self.leadership.not_binding(),
            in_step=lambda: watches.in_step,
        )
        super().__init__(
            watches,
            metrics,
            host=settings.http_host,
            port=settings.http_port,
            close=api.close,
            unlisted="nodes, pods and workloads are not listed yet",
            wake=state.changed.set,
            leadership=self.leadership.run,
            checker=self._checker.run,
        )

    def finish(self) -> None:
        """Write nothing more, and release the lease."""
        self.leadership.end(is_binding=lambda: self._checker.is_writing)


def oldest_wait(state: GateState) -> float:
    """Return how many seconds ago quota was reserved that no check has answered; 0 if all have.

    A check that waits for pods to end has answered: it keeps their cards.
    """
    since = [
        workload.since
        for workload, check in state.waiting()
        if not str(check.get("message") or "").startswith("{")
    ]
    return max(state.now() - min(since), 0.0) if since else 0.0


def export_gauges(
    metrics: Metrics, state: GateState, *, leads: Callable[[], bool], in_step: Callable[[], bool]
) -> None:
    """Export the gauges that are computed at each scrape."""
    for name, text, value in (
        ("leader", "1 while this replica answers.", leads),
        ("in_step", "1 while all objects are listed and watched.", in_step),
        ("waiting_workloads", "Workloads that wait for an answer.", lambda: len(state.waiting())),
        (
            "oldest_wait_seconds",
            "For how long a workload has had quota without an answer, at most; 0 without any.",
            lambda: oldest_wait(state),
        ),
        ("promised_workloads", "Workloads for which cards are kept.", lambda: state.promised),
    ):
        metrics.export(name, text, value)
