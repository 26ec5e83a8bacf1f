"""Follows the cluster and makes an edition whenever it changes."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping

from common.apiserver.client import Client, Json
from common.apiserver.errors import REQUEST_ERRORS
from common.apiserver.follower import skipping_unreadable
from common.errors import Unavailable
from view.cluster.agents import AGENT_NAMESPACE, read_usages
from view.cluster.collections import ResourceKind
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.cluster.timing import REAL_TIME, Timing
from view.model.pod_explanation import PodExplanation
from view.model.reports import Freshness
from view.model.state import ClusterState
from view.model.usage import NodeUsage, explanation_with_usage, with_usage
from view.model.usage_history import GroupBy, History, UsageRow, usage_rows
from view.web.editions import EMPTY, next_edition
from view.web.feed import Feed
from view.web.figures import utc
from view.web.metrics import Metrics

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 15.0
"""Interval in which usage is read from the agents."""

_IDLE_SECONDS = 300.0
"""The same, if no agent measures or may be read."""

_HISTORY_SECONDS = 300.0
"""Interval in which Prometheus is queried for the last day."""

_SHARE = 10
"""Pause after an edition, in times of its duration: editions use at most a tenth of a core."""


_PATIENCE_SECONDS = 10.0
"""How long an old edition is still ready if making new ones fails."""

_EVENTS_SECONDS = 10.0
"""Interval in which Events of one pod are read, however many browsers show it."""


class _Cluster(LiveCluster):
    """Skips objects that it cannot read: one bad object must not hide all others."""

    def _apply(self, kind: ResourceKind, verb: str, obj: Json) -> None:
        with skipping_unreadable(kind.what, obj):
            super()._apply(kind, verb, obj)


class Live:
    """Makes editions of the cluster. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- its parts, by keyword
        self,
        client: Client,
        state: ClusterState,
        feed: Feed,
        metrics: Metrics,
        *,
        namespace: str,
        agents: str = AGENT_NAMESPACE,
        prometheus: Prometheus | None = None,
        patience: float = _PATIENCE_SECONDS,
        timing: Timing = REAL_TIME,
    ) -> None:
        """Prepare; no request is sent before :meth:`start`, and :meth:`stop` closes the client.

        If an internal error prevents new editions for *patience* seconds, it is not ready.
        """
        self._client = client
        self._cluster = _Cluster(client, state, namespace=namespace, timing=timing)
        self._agents = agents
        self.uses: Mapping[str, NodeUsage] = {}
        """Last measured usage, by node; only nodes whose agents measure."""
        self._limits: Mapping[str, NodeUsage] = {}  # of nodes that report limits of processes
        self._measured = 0.0
        self._feed = feed
        self._metrics = metrics
        self._stop = threading.Event()
        self._seen = 0
        self.edition = EMPTY
        """The newest edition."""
        self._patience = patience
        self._timing = timing
        self._prometheus = prometheus
        self.history = History("Prometheus is being queried") if prometheus is not None else None
        """Usage of the last day; ``None`` if no Prometheus is configured."""
        self._fault: tuple[str, float] | None = None  # why no edition can be made, and since when
        self._logged: dict[str, str] = {}
        self._events_read: dict[tuple[str, str], tuple[float]] = {}  # by pod
        for name, text, value in (
            (
                "in_step",
                "1 while nodes and pods are followed and the API server responds.",
                lambda: not self.not_ready(),
            ),
            ("known_nodes", "Nodes on the page.", lambda: len(self.edition.report.nodes)),
            ("known_pods", "Known GPU pods.", lambda: len(self.edition.report.pods)),
            ("streams", "Browsers that receive updates.", lambda: feed.streams),
            (
                "streams_refused",
                "Browsers that got no stream because too many were open.",
                lambda: feed.refused,
            ),
        ):
            metrics.export(name, text, value)

    def start(self) -> None:
        """Start to follow the cluster; returns at once."""
        self._cluster.follow(self._stop)
        for name, step in (
            ("editions", self._make_edition),
            ("use", self._measure),
            ("history", self._read_history),
        ):
            threading.Thread(target=self._repeat, args=(step,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End the watches and the streams of browsers; may be called again."""
        self._stop.set()
        self._feed.close()
        self._client.close()

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Explain one pod; ``None`` if no pod of this name requests GPUs."""
        explanation = self._cluster.explain(namespace, name)
        if explanation is None:
            return None
        # Events of scheduler and kubelet are not followed: most are about other pods.
        key, reading = (namespace, name), (self._timing.monotonic(),)
        self._events_read = {
            pod: at for pod, at in self._events_read.items() if reading[0] - at[0] < _EVENTS_SECONDS
        }
        # Of several threads, the one whose object is stored reads them.
        if not explanation.deleted and self._events_read.setdefault(key, reading) is reading:
            with contextlib.suppress(*REQUEST_ERRORS):
                self._cluster.load_events_of(namespace, name)
                self._cluster.load_template_of(namespace, name)
                self._cluster.load_queue_of(namespace, name)
                explanation = self._cluster.explain(namespace, name)
        return explanation and explanation_with_usage(explanation, {**self._limits, **self.uses})

    def now(self) -> float:
        """Return unix time, by the clock that ages the data."""
        return self._timing.now()

    @property
    def freshness(self) -> Freshness:
        """Age of the data."""
        found, fault = self._cluster.freshness, self._fault
        if fault is not None and self._timing.monotonic() - fault[1] > self._patience:
            return Freshness(found.at, "the page is old: an internal error prevents a newer one")
        return found

    @property
    def measured_at(self) -> float:
        """Time of the last measurement of usage, unix time; 0 if it is not measured."""
        return self._measured if self.uses else 0.0

    def usage(self, by: GroupBy, namespace: str) -> list[UsageRow]:
        """Return usage by group."""
        return usage_rows(self.edition.report, self.uses, self.history, by, namespace)

    def not_ready(self) -> str:
        """Return why the data is incomplete or old; empty if it is neither."""
        if self._stop.is_set():
            return "shutting down"
        missing = self._cluster.missing
        if missing:
            return f"not ready yet: {' and '.join(missing)} are being listed"
        if not self.edition.number:
            return "not ready yet: the first page is being built"
        gaps = self.edition.report.gaps
        unknown = [each.what for each in gaps if each.whole and each.what != "events"]
        if unknown:
            return f"{' and '.join(unknown)} may not be read"
        fresh = self.freshness
        return f"stale since {utc(fresh.at)}: {fresh.stale}" if fresh.stale else ""

    def _repeat(self, step: Callable[[], float]) -> None:
        """Repeat a step, which returns the seconds until the next one."""
        while not self._stop.is_set():
            self._stop.wait(step())

    def _make_edition(self) -> float:
        """Make an edition after each change of the cluster, but not too often."""
        self._seen = self._cluster.wait_for_change(self._seen, self._timing.pause)
        began = self._timing.monotonic()
        try:
            self._make()
        except Exception as error:
            known, since = self._fault or ("", began)
            self._fault = repr(error), since
            if repr(error) != known:
                log.error("making an edition failed", exc_info=error)
        else:
            self._fault = None
        return max(self._timing.pause, _SHARE * self._seconds_since(began))

    def _make(self) -> None:
        began = self._timing.monotonic()
        if self._cluster.missing:
            return  # still being listed: half a cluster would look like all of it
        report = with_usage(self._cluster.report(), self.uses)
        made = next_edition(self.edition, report, first=int(self._timing.now()))
        self._metrics.count_edition(self._seconds_since(began))
        if made is not self.edition:
            self.edition = made
            self._feed.publish(made.number)

    def _measure(self) -> float:
        """Read usage from the agents."""
        began, problem = self._timing.monotonic(), ""
        try:
            found = read_usages(self._client, self._agents)
        except REQUEST_ERRORS as error:
            problem = str(error)
            if not isinstance(
                error, Unavailable
            ):  # if unreachable, keep it: all other data is old too
                self.uses = self._limits = {}
        else:
            self.uses = {each.node: each for each in found if each.measured}
            self._limits = {
                each.node: each for each in found if any(one.limit for one in each.containers)
            }
            self._measured = self._timing.now()
            if not self.uses:
                problem = next((each.problem for each in found if each.problem), "")
        self._log_once("usage not available", problem)
        pause = _PERIOD_SECONDS if self.uses or self._limits else _IDLE_SECONDS
        return max(pause, _SHARE * self._seconds_since(began))

    def _read_history(self) -> float:
        """Read the usage of the last day."""
        if self._prometheus is not None:
            self.history = self._prometheus.last_day()
            self._log_once("usage of the last day not available", self.history.problem)
            if self.history.problem:
                return _PERIOD_SECONDS
        return _HISTORY_SECONDS

    def _seconds_since(self, began: float) -> float:
        return self._timing.monotonic() - began

    def _log_once(self, message: str, reason: str) -> None:
        """Log a message when its reason changes."""
        if reason and self._logged.get(message) != reason:
            log.info(message, extra={"reason": reason})
        self._logged[message] = reason
