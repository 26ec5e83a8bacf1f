"""The cluster as it is now: editions of it, made as it changes."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping

from common.apiserver.client import Client, Json
from common.apiserver.errors import Gone, Rejected
from common.apiserver.follower import passing_over
from common.errors import Unavailable
from view.cluster.agents import AGENT_NAMESPACE, read_uses
from view.cluster.collections import ResourceKind
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.model.explanation import PodExplanation
from view.model.reports import Freshness
from view.model.state import ClusterState
from view.model.usage import NodeUsage, story_with_use, with_use
from view.model.usage_history import GroupBy, History, UsageRow, usage_rows
from view.web.editions import EMPTY, next_edition
from view.web.feed import Feed
from view.web.figures import utc
from view.web.metrics import Metrics

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 15.0
"""From one time that agents are asked to the next."""

_IDLE_SECONDS = 300.0
"""Where nobody measures, or nobody may be asked."""

_HISTORY_SECONDS = 300.0
"""From one time that Prometheus is asked for the last day to the next."""

_PAUSE_SECONDS = 1.0
_SHARE = 10
"""An edition that took a second is followed by the next after ten: a tenth of a core."""


_PATIENCE_SECONDS = 10.0
"""For so long an older edition is as good, though none can be made."""

_EVENTS_SECONDS = 10.0
"""For so long the Events of one pod are not read again, however many browsers look at it."""


class _Cluster(LiveCluster):
    """One that passes over what it cannot take in: one object must not cost all others."""

    def _take(self, kind: ResourceKind, verb: str, obj: Json) -> None:
        with passing_over(kind.what, obj):
            super()._take(kind, verb, obj)


class Live:
    """Editions of the cluster. Safe to share between threads."""

    def __init__(  # noqa: PLR0913 -- what it is made of, by keyword
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
    ) -> None:
        """Prepare; nothing is asked before :meth:`start`, and :meth:`stop` ends the client.

        Where our own fault keeps editions from being made for *patience* seconds, it is not ready.
        """
        self._client = client
        self._cluster = _Cluster(client, state, namespace=namespace)
        self._agents = agents
        self.uses: Mapping[str, NodeUsage] = {}
        """What was measured last, by node; nodes whose agents do not measure are left out."""
        self._measured = 0.0
        self._feed = feed
        self._metrics = metrics
        self._stop = threading.Event()
        self._seen = 0
        self.edition = EMPTY
        """The newest one."""
        self._patience = patience
        self._prometheus = prometheus
        self.history = History("Prometheus is being asked") if prometheus is not None else None
        """The use of the last day; ``None`` where no Prometheus is named."""
        self._fault: tuple[str, float] | None = None  # what keeps editions from being made
        self._told: dict[str, str] = {}
        self._asked: dict[tuple[str, str], float] = {}  # when Events of a pod were read
        for name, text, value in (
            (
                "in_step",
                "1 while nodes and pods are followed, and the API server is heard.",
                lambda: not self.not_ready(),
            ),
            ("known_nodes", "Nodes that are shown.", lambda: len(self.edition.report.nodes)),
            ("known_pods", "GPU pods that are known.", lambda: len(self.edition.report.pods)),
            ("streams", "Browsers that are told of changes.", lambda: feed.streams),
            ("streams_refused", "Browsers for which no stream was left.", lambda: feed.refused),
        ):
            metrics.export(name, text, value)

    def start(self) -> None:
        """Begin to follow the cluster; returns at once."""
        self._cluster.follow(self._stop)
        for name, step in (
            ("editions", self._make_edition),
            ("use", self._measure),
            ("history", self._ask_prometheus),
        ):
            threading.Thread(target=self._repeat, args=(step,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End the watches and the streams of browsers; as often as one likes."""
        self._stop.set()
        self._feed.close()
        self._client.close()

    def explain(self, namespace: str, name: str) -> PodExplanation | None:
        """Explain one pod; ``None`` where there is none that asks for GPUs."""
        story = self._cluster.explain(namespace, name)
        if story is None:
            return None
        # Those of scheduler and kubelet are not followed: most are about other pods.
        now = time.monotonic()
        self._asked = {key: at for key, at in self._asked.items() if now - at < _EVENTS_SECONDS}
        if not story.deleted and self._asked.setdefault((namespace, name), now) == now:
            with contextlib.suppress(Gone, Rejected, Unavailable):
                self._cluster.load_events_of(namespace, name)
                story = self._cluster.explain(namespace, name)
        return story and story_with_use(story, self.uses)

    @property
    def freshness(self) -> Freshness:
        """How old what is shown is."""
        found, fault = self._cluster.freshness, self._fault
        if fault is not None and time.monotonic() - fault[1] > self._patience:
            return Freshness(found.at, "the picture is old: a newer one cannot be made")
        return found

    @property
    def measured_at(self) -> float:
        """When use was measured, unix time; 0 where it is not."""
        return self._measured if self.uses else 0.0

    def usage(self, by: GroupBy, namespace: str) -> list[UsageRow]:
        """Return who holds and who wastes."""
        return usage_rows(self.edition.report, self.uses, self.history, by, namespace)

    def not_ready(self) -> str:
        """Return why what is known is not the whole, or old; empty when it is neither."""
        if self._stop.is_set():
            return "shutting down"
        missing = self._cluster.missing
        if missing:
            return f"not in step yet: {' and '.join(missing)} are being listed"
        if not self.edition.number:
            return "not in step yet: the first picture is being made"
        gaps = self.edition.report.gaps
        unknown = [each.what for each in gaps if each.whole and each.what != "events"]
        if unknown:
            return f"{' and '.join(unknown)} may not be read"
        fresh = self.freshness
        return f"stale since {utc(fresh.at)}: {fresh.stale}" if fresh.stale else ""

    def _repeat(self, step: Callable[[], float]) -> None:
        """Take a step again and again; it returns the seconds until the next one."""
        while not self._stop.is_set():
            self._stop.wait(step())

    def _make_edition(self) -> float:
        """Make an edition, as often as the cluster changes and no more than is worth it."""
        self._seen = self._cluster.wait_for_change(self._seen, _PAUSE_SECONDS)
        began = time.monotonic()
        try:
            self._make()
        except Exception as error:
            known, since = self._fault or ("", began)
            self._fault = repr(error), since
            if repr(error) != known:
                log.error("no edition made", exc_info=error)
        else:
            self._fault = None
        return max(_PAUSE_SECONDS, _SHARE * (time.monotonic() - began))

    def _make(self) -> None:
        began = time.monotonic()
        if self._cluster.missing:
            return  # being listed: half a cluster would look like a cluster
        report = with_use(self._cluster.report(), self.uses)
        made = next_edition(self.edition, report, first=int(time.time()))
        self._metrics.made(time.monotonic() - began)
        if made is not self.edition:
            self.edition = made
            self._feed.publish(made.number)

    def _measure(self) -> float:
        """Ask agents what they measure."""
        began, problem = time.monotonic(), ""
        try:
            found = read_uses(self._client, self._agents)
        except (Rejected, Gone, Unavailable) as error:
            problem = str(error)
            if not isinstance(error, Unavailable):  # else it is as old as all that is shown
                self.uses = {}
        else:
            self.uses = {each.node: each for each in found if each.measured}
            self._measured = time.time()
            if not self.uses:
                problem = next((each.problem for each in found if each.problem), "")
        self._tell("use is not shown", problem)
        pause = _PERIOD_SECONDS if self.uses else _IDLE_SECONDS
        return max(pause, _SHARE * (time.monotonic() - began))

    def _ask_prometheus(self) -> float:
        """Ask for the use of the last day."""
        if self._prometheus is not None:
            self.history = self._prometheus.last_day()
            self._tell("the use of the last day is not known", self.history.problem)
            if self.history.problem:
                return _PERIOD_SECONDS
        return _HISTORY_SECONDS

    def _tell(self, what: str, reason: str) -> None:
        """Log why something is not known, once."""
        if reason and self._told.get(what) != reason:
            log.info(what, extra={"reason": reason})
        self._told[what] = reason
