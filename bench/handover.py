"""What an agent's end costs pods: handed over, killed beside a standby, killed alone.

Webhook, agent, API server, scheduler and kubelet are processes of their own, the last three
simulated. Short pods come one after the other while agents end; whoever is refused in between is
lost, since the kubelet fails a pod for good while no plugin is registered (fact K19).
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bench.result import Goal, Result, Table
from contract.names import Names
from simulator.burst import container, pod
from simulator.cards import cards_file
from simulator.cluster import Cluster, read_lines
from simulator.kubelet.pods import RUN_SECONDS
from simulator.manifests import Json

NAME = "handover"

SECONDS = 120.0
"""How long pods come."""
PODS_PER_SECOND = 5
HANDOVERS = 20
KILLS = 5
_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the pods of one way to end.

    Attributes:
        ended: agents that ended.
        pods: pods that were created.
        failed: those that failed, by the kubelet's words.
        gaps: seconds from each end to the next registration; none where there was no gap.
    """

    ended: int
    pods: int
    failed: Counter[str]
    gaps: tuple[float, ...]


class _Agents:
    """The agents of one node, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._serving = "agent"
        self._count = 0
        self.gaps: list[float] = []

    def hand_over(self) -> None:
        """Let a successor stand by, and ask the agent that serves to end."""
        following = self._next()
        self._await(following, "standing by")
        self._end(signal.SIGTERM)
        self._serving = following

    def kill_beside_standby(self) -> None:
        """Let a successor stand by, and kill the agent that serves."""
        following = self._next()
        self._await(following, "standing by")
        self._end(signal.SIGKILL)
        began = time.monotonic()
        self._await(following, "registered")
        self.gaps.append(time.monotonic() - began)
        self._serving = following

    def kill_alone(self) -> None:
        """Kill the agent that serves, and start another at once."""
        self._end(signal.SIGKILL)
        began = time.monotonic()
        following = self._next()
        self._await(following, "registered")
        self.gaps.append(time.monotonic() - began)
        self._serving = following

    def _next(self) -> str:
        self._count += 1
        label = f"agent-{self._count}"
        self._cluster.start("agent", "--http-port", "0", label=label)
        return label

    def _end(self, number: int) -> None:
        self._cluster.kill(self._serving, number=number)

    def _await(self, label: str, message: str) -> None:
        log = self._cluster.log(label)

        def said() -> bool:
            return any(line.get("message") == message for line in read_lines(log))

        self._cluster.wait(f"{label}: {message}", said, within=_WITHIN_S)


class _Pods:
    """Pods that come at a steady rate, each for a second."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster = cluster
        self._names = names
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.created = 0

    def begin(self) -> None:
        """Create pods from now on."""
        self._thread.start()

    def end(self) -> Counter[str]:
        """Create no more; wait until all have ended, and count those that failed, by reason."""
        self._stop.set()
        self._thread.join(_WITHIN_S)
        self._cluster.wait("all pods have ended", self._all_ended, within=_WITHIN_S)
        statuses = [each["status"] for each in self._cluster.pods()]
        return Counter(
            each.get("message", each.get("reason", ""))
            for each in statuses
            if each["phase"] == "Failed"
        )

    def _all_ended(self) -> bool:
        phases = {each.get("status", {}).get("phase") for each in self._cluster.pods()}
        return phases <= {"Succeeded", "Failed"}

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            self._cluster.create(self._pod())
            self.created += 1
            due += 1 / PODS_PER_SECOND

    def _pod(self) -> Json:
        made = pod(
            f"short-{self.created}", [container("c", 1, 1, self._names)], restartPolicy="Never"
        )
        made["metadata"]["annotations"] = {RUN_SECONDS: "1"}
        return made


def measure(way: str, times: int, seconds: float) -> Outcome:
    """Let agents end so many times, evenly spread, while pods come.

    Args:
        way: ``hand_over``, ``kill_beside_standby`` or ``kill_alone``.
        times: how often.
        seconds: for how long pods come.

    Raises:
        ClusterError: a process did not do its part.
    """
    names = Names()
    with Cluster(cards_file(8, "80Gi"), names=names) as cluster:
        agents, pods = _Agents(cluster), _Pods(cluster, names)
        end: Callable[[], None] = getattr(agents, way)
        began = time.monotonic()
        pods.begin()
        for number in range(times):
            due = began + (number + 0.5) * seconds / times
            time.sleep(max(due - time.monotonic(), 0))
            end()
        time.sleep(max(began + seconds - time.monotonic(), 0))
        failed = pods.end()
        return Outcome(times, pods.created, failed, tuple(agents.gaps))


_WAYS = (
    ("handed over (rolling update)", "hand_over", HANDOVERS),
    ("kill -9 beside a standby", "kill_beside_standby", KILLS),
    ("kill -9, no standby", "kill_alone", KILLS),
)


def run(seconds: float = SECONDS) -> Result:
    """Let agents end in each way.

    Args:
        seconds: how long pods come for each; the agents that end are fewer in less time.
    """
    rows, outcomes = [], {}
    for title, way, times in _WAYS:
        outcome = measure(way, max(round(times * seconds / SECONDS), 1), seconds)
        outcomes[way] = outcome
        worst = max(outcome.gaps, default=0.0)
        lost = sum(outcome.failed.values())
        rows.append((title, outcome.ended, outcome.pods, lost, round(worst * 1000)))
    return Result(
        NAME,
        (
            Table(
                f"Pods created {PODS_PER_SECOND} a second, each for a second, while agents end",
                ("how", "agents ended", "pods", "failed", "longest gap, ms"),
                rows,
                ("A gap: from the agent's end until the next is registered, as its log tells.",),
            ),
        ),
        (Goal("pods failed in handovers", 0, sum(outcomes["hand_over"].failed.values())),),
        {
            way: {"failed": dict(outcome.failed), "gaps": outcome.gaps}
            for way, outcome in outcomes.items()
        },
    )
