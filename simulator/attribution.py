"""Who was right: each ``Allocate`` of a kubelet's trace against what was said of it. Pure."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Who = tuple[str, str, str]
"""Namespace, pod and container."""


@dataclass(frozen=True, slots=True)
class Call:
    """One ``Allocate`` that the kubelet made.

    Attributes:
        who: for whom, as the kubelet recorded.
        resource: the resource's full name.
        ids: the device IDs.
        unix_ms: when.
    """

    who: Who
    resource: str
    ids: frozenset[str]
    unix_ms: float


@dataclass(frozen=True, slots=True)
class Tally:
    """How a rule did over many calls."""

    right: int = 0
    wrong: int = 0
    refused: int = 0

    @property
    def calls(self) -> int:
        """All of them."""
        return self.right + self.wrong + self.refused


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod as a rule that goes by age sees it.

    Attributes:
        namespace, name: which pod.
        predicate_time: unix time in ns, from its annotation.
        bound_unix_ms: when its binding was seen; before that it is no candidate.
        cores: each main container's name and cores, in order.
    """

    namespace: str
    name: str
    predicate_time: int
    bound_unix_ms: float
    cores: tuple[tuple[str, int], ...]


def allocate_calls(trace: Iterable[Mapping[str, Any]]) -> list[Call]:
    """Take the answered ``Allocate`` calls out of a kubelet's trace, in order."""
    return [
        Call(
            (line["namespace"], line["pod"], line["container"]),
            line["resource"],
            frozenset(line["ids"]),
            line["unix_ms"],
        )
        for line in trace
        if line["event"] == "rpc" and line["rpc"] == "Allocate" and not line["error"]
    ]


def score_agent(
    calls: Sequence[Call],
    log: Iterable[Mapping[str, Any]],
    *,
    resources: Mapping[str, str],
    summarize: Any,
) -> tuple[Tally, list[tuple[Call, Who | None]]]:
    """Compare what the agent logged of each ``Allocate`` with whom the kubelet made it for.

    Args:
        calls: the kubelet's side.
        log: the agent's log lines, in order.
        resources: full resource name -> the word the agent's log uses.
        summarize: how the agent's log writes device IDs.

    Returns:
        The tally, and every call that was named wrongly with whom was named.
    """
    said: defaultdict[tuple[str, str], deque[Who]] = defaultdict(deque)
    for line in log:
        if line.get("message") == "allocate":
            namespace, _, pod = line["pod"].partition("/")
            said[line["resource"], line["ids"]].append((namespace, pod, line["container"]))
    right, wrong = 0, []
    for call in calls:
        queue = said[resources[call.resource], summarize(call.ids)]
        named = queue.popleft() if queue else None
        if named == call.who:
            right += 1
        else:
            wrong.append((call, named))
    return Tally(right=right, wrong=len(wrong)), wrong


def score_oldest_pending(calls: Sequence[Call], pods: Sequence[Pending], *, core: str) -> Tally:
    """Replay the core calls by the rule that goes by age (fact K6).

    The oldest predicate time first, a pod already begun before all others, the first
    container with equal cores; a container named once is taken.
    """
    taken: set[Who] = set()
    begun: set[tuple[str, str]] = set()
    right = wrong = refused = 0
    for call in (each for each in calls if each.resource == core):
        line = sorted(
            (each for each in pods if each.bound_unix_ms <= call.unix_ms),
            key=lambda each: (
                (each.namespace, each.name) not in begun,
                each.predicate_time,
                each.namespace,
                each.name,
            ),
        )
        named = next(
            (
                (each.namespace, each.name, container)
                for each in line
                for container, cores in each.cores
                if cores == len(call.ids) and (each.namespace, each.name, container) not in taken
            ),
            None,
        )
        if named is None:
            refused += 1
            continue
        taken.add(named)
        key = named[:2]
        left = [
            container
            for each in line
            if (each.namespace, each.name) == key
            for container, _ in each.cores
            if (*key, container) not in taken
        ]
        (begun.add if left else begun.discard)(key)
        if named == call.who:
            right += 1
        else:
            wrong += 1
    return Tally(right, wrong, refused)
