"""Who holds cards and does not use them: added up over the time that has been seen. Pure.

A card's worth is 100 cores. What is not measured is neither used nor idle: it is held, and no more
is known.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from view.model.reports import ClusterReport, Stage
from view.model.usage import NodeUse

_DAY = 86400.0
_BUCKETS = 8
_BUCKET = _DAY / _BUCKETS
_LONGEST_STEP = 120.0
"""What was not looked at for longer has not been seen."""

_MOST_PODS = 20_000
"""In one bucket; what more there are is added up by owner."""

_HOUR_CARDS = 3600.0 * 100
"""Hundredths of a card over seconds make this many card hours."""


class By(StrEnum):
    """What is added up."""

    NAMESPACE = "namespace"
    OWNER = "owner"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Account:
    """A namespace, an owner or a pod. Amounts are cards' worth, or hours of one.

    Attributes:
        namespace: its name; empty for what is held by pods that may not be read.
        owner: kind and name of what made it; empty where nobody did, or for a namespace.
        pod: its name; empty where it is no pod.
        held: now.
        used: now, of what is measured; ``None`` where nothing is.
        waiting: asked for now by pods without a node.
        held_hours: over the time that has been seen.
        measured_hours: of these, those for which it is known what was used.
        idle_hours: of the measured hours, not used.
    """

    namespace: str
    owner: str
    pod: str
    held: float
    used: float | None
    waiting: float
    held_hours: float
    measured_hours: float
    idle_hours: float

    @property
    def idle_share(self) -> float | None:
        """Which part of the measured hours was not used; ``None`` where nothing was measured."""
        return self.idle_hours / self.measured_hours if self.measured_hours else None


@dataclass(frozen=True, slots=True)
class Statement:
    """Accounts and the time that they are about.

    Attributes:
        accounts: those that have wasted most first.
        since: when it began, unix time; 0 where nothing has been seen yet.
        until: when it ended, unix time.
        seen: seconds of it that have been seen.
        whole: whether it goes back to the start of the page; else it is the last day.
    """

    accounts: tuple[Account, ...]
    since: float
    until: float
    seen: float
    whole: bool


_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Sum:
    """Hundredths of a card, or these over seconds."""

    held: float = 0.0
    measured: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    waiting: float = 0.0

    def add(self, other: "_Sum", times: float = 1.0) -> None:
        self.held += other.held * times
        self.measured += other.measured * times
        self.used += other.used * times
        self.idle += other.idle * times
        self.waiting += other.waiting * times


@dataclass(slots=True)
class _Bucket:
    began: float
    seen: float = 0.0
    sums: dict[_Key, _Sum] = field(default_factory=dict)


class Ledger:
    """Takes in how things stand, again and again. Not safe to share between threads."""

    def __init__(self) -> None:
        self._began = self._at = 0.0
        self._buckets: list[_Bucket] = []
        self._now: dict[_Key, _Sum] = {}

    def take(self, report: ClusterReport, uses: Mapping[str, NodeUse], at: float) -> None:
        """Count how things stand for the time since this was called last; *uses* are by node."""
        step, self._at = at - self._at, at
        self._began = self._began or at
        self._now = _standing(report, uses)
        if not 0 < step <= _LONGEST_STEP:
            return
        if not self._buckets or at - self._buckets[-1].began >= _BUCKET:
            self._buckets = [*self._buckets[1 - _BUCKETS :], _Bucket(at - step)]
        bucket = self._buckets[-1]
        bucket.seen += step
        for key, each in self._now.items():
            if key not in bucket.sums and len(bucket.sums) >= _MOST_PODS:
                key = (key[0], key[1], "")  # noqa: PLW2901 -- one too many
            bucket.sums.setdefault(key, _Sum()).add(each, step)

    def state(self, by: By, namespace: str = "") -> Statement:
        """Return what has been seen, added up; of one namespace alone, if one is named."""
        now = _by(by, [self._now], namespace)
        past = _by(by, (each.sums for each in self._buckets), namespace)
        none = _Sum()
        accounts = [
            _account(key, now.get(key, none), past.get(key, none)) for key in {**past, **now}
        ]
        since = self._buckets[0].began if self._buckets else self._began
        return Statement(
            tuple(sorted(accounts, key=_most_wasted)),
            since,
            self._at,
            sum(each.seen for each in self._buckets),
            since <= self._began,
        )


def _most_wasted(account: Account) -> tuple[object, ...]:
    names = (account.namespace, account.owner, account.pod)
    return (-account.idle_hours, -account.held_hours, -account.held, -account.waiting, *names)


def _standing(report: ClusterReport, uses: Mapping[str, NodeUse]) -> dict[_Key, _Sum]:
    """Return what each pod holds, uses and waits for."""
    owners = {(each.namespace, each.name): each.owner for each in report.pods}
    holding: dict[tuple[str, str, str, str], int] = {}
    for node in report.nodes:
        for card in node.cards:
            for each in card.holders:
                place = (node.name, each.namespace, each.pod, each.container)
                holding[place] = holding.get(place, 0) + each.cores
    used = {
        (node.node, each.namespace, each.pod, each.container): each.cores_used
        for node in uses.values()
        for each in node.containers
    }
    found: dict[_Key, _Sum] = {}
    for place, cores in holding.items():
        namespace, name = place[1:3]
        key = namespace, owners.get((namespace, name), ""), name
        entry = found.setdefault(key, _Sum())
        entry.held += cores
        use = used.get(place)
        if use is not None:
            entry.measured += cores
            entry.used += use
            entry.idle += max(cores - use, 0)
    for pod in report.pods:
        if pod.stage is Stage.WAITING:
            entry = found.setdefault((pod.namespace, pod.owner, pod.name), _Sum())
            entry.waiting += sum(each.cores for each in pod.containers)
    return found


def _by(by: By, sums: Iterable[Mapping[_Key, _Sum]], namespace: str) -> dict[_Key, _Sum]:
    found: dict[_Key, _Sum] = {}
    for each in sums:
        for (space, owner, pod), amount in each.items():
            if namespace in ("", space):
                alone = by is By.POD or (by is By.OWNER and not owner)
                key = (space, owner if by is not By.NAMESPACE else "", pod if alone else "")
                found.setdefault(key, _Sum()).add(amount)
    return found


def _account(key: _Key, now: _Sum, past: _Sum) -> Account:
    return Account(
        *key,
        held=now.held / 100,
        used=now.used / 100 if now.measured else None,
        waiting=now.waiting / 100,
        held_hours=past.held / _HOUR_CARDS,
        measured_hours=past.measured / _HOUR_CARDS,
        idle_hours=past.idle / _HOUR_CARDS,
    )
