"""All cards that are kept for pods, and what decides who is evicted for whom. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any

from contract.quantity import parse_quantity
from placement.cluster.nominations import CONDITION, CardPromise, Nomination, read_nomination
from placement.pods import PodId, PodInfo

_MIRROR = "kubernetes.io/config.mirror"
_GRACE_SECONDS = 30
_LONGEST_GRACE_SECONDS = 3600.0
LEAVES_WITHIN_SECONDS = 60.0
"""A pod that ends within this time counts as one that leaves."""
_OVERDUE_SECONDS = 30.0
_GANG_LABELS = (
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io/pod-group",
    "kueue.x-k8s.io/pod-group-name",
)
_GANG_ANNOTATION = "scheduling.k8s.io/group-name"  # Volcano
TOLD_SECONDS = 5.0
"""How long the cards of a pod of a group are kept after the last request about the group.

kube-scheduler sends the Bindings of a group once it has found a node for its last pod.
"""
REFUSED_SECONDS = 2.0
"""The same if a pod of the group fits nowhere, and it is unknown how many pods are enough.

Filter waits up to 1 s for Bindings, so a request about the next pod may be that late.
"""
_KNOWN_SECONDS = 60.0
"""How long it is remembered how many pods of a group are enough: another one may get its name."""

Json = Mapping[str, Any]
ChosenCards = Mapping[str, tuple[int, ...]]
"""Indices of cards by container."""
Requests = Mapping[str, Fraction | int]
"""Amounts by the name of the resource."""


@dataclass(frozen=True, slots=True)
class PodStanding:
    """What decides who is evicted for whom.

    Attributes:
        priority: the pod's priority.
        may_preempt: whether other pods may be evicted for it; not while it has scheduling gates, as
            pods have that wait in a queue.
        group: its gang, else its controller; empty if it has neither.
        namespace: its namespace, with its labels what budgets select it by.
        labels: its labels.
        requests: what kube-scheduler counts of it, by resource.
        grace: seconds that it gets to end.
        ends_at: when it is to have ended, Unix seconds; ``None`` if nobody has deleted it.
        mirror: whether it is a static pod, which cannot be evicted.
    """

    priority: int = 0
    may_preempt: bool = True
    group: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    requests: Requests = field(default_factory=dict)
    grace: int = _GRACE_SECONDS
    ends_at: float | None = None
    mirror: bool = False

    @property
    def may_be_evicted(self) -> bool:
        """Whether the Eviction API can evict it, and nobody has deleted it."""
        return not self.mirror and self.ends_at is None

    def ends_by(self, now: float) -> float:
        """Return when it has ended if it is evicted now, Unix seconds; an hour at most is counted.

        The API server checks neither bound of ``terminationGracePeriodSeconds``.
        """
        ends_at = now + self.grace if self.ends_at is None else self.ends_at
        return min(max(ends_at, now), now + _LONGEST_GRACE_SECONDS)

    def is_overdue(self, now: float) -> bool:
        """Return whether it should have ended some time ago: its kubelet may be unavailable."""
        return self.ends_at is not None and now - self.ends_at > _OVERDUE_SECONDS

    def leaves_soon(self, now: float, within: float = LEAVES_WITHIN_SECONDS) -> bool:
        """Return whether it is about to end, so that what it holds is as good as free."""
        if self.ends_at is None:
            return False
        return -_OVERDUE_SECONDS <= self.ends_at - now <= within


def read_standing(obj: Json) -> PodStanding:
    """Read a pod object."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    grace, deleted = spec.get("terminationGracePeriodSeconds"), metadata.get("deletionTimestamp")
    return PodStanding(
        spec.get("priority") or 0,
        spec.get("preemptionPolicy") != "Never" and not spec.get("schedulingGates"),
        _group(metadata, spec, labels, annotations),
        metadata.get("namespace", ""),
        labels,
        _read_requests(spec),
        _GRACE_SECONDS if grace is None else grace,
        datetime.fromisoformat(deleted).timestamp() if deleted else None,
        _MIRROR in annotations,
    )


def add_requests(parts: Iterable[Requests]) -> Requests:
    """Return the sums."""
    total: dict[str, Fraction | int] = {}
    for each in parts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    return total


def _read_requests(spec: Json) -> Requests:
    """Return what a pod requests: all that run together, or one init container if it is more."""
    stay = [_of_container(each) for each in spec.get("containers") or ()]
    largest: dict[str, Fraction | int] = {}
    for each in spec.get("initContainers") or ():
        requests = _of_container(each)
        if each.get("restartPolicy") == "Always":
            stay.append(requests)
        for name, amount in requests.items():
            largest[name] = max(largest.get(name, 0), amount)
    together = add_requests(stay)
    return {
        name: max(together.get(name, 0), largest.get(name, 0))
        for name in together.keys() | largest.keys()
    }


def _of_container(container: Json) -> Requests:
    # The API server copies limits into requests that are missing.
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: parse_quantity(amount) or 0 for name, amount in requests.items()}


def group_of(obj: Json) -> str:
    """Return the PodGroup of ``scheduling.k8s.io`` of a pod object, ``""`` if it has none.

    kube-scheduler (1.36, ``GenericWorkload``) asks about all pods of a group before it binds one.
    """
    name = ((obj.get("spec") or {}).get("schedulingGroup") or {}).get("podGroupName")
    return f"{obj['metadata'].get('namespace', '')}/{name}" if name else ""


def _group(metadata: Json, spec: Json, labels: Json, annotations: Json) -> str:
    native = spec.get("schedulingGroup") or {}
    gangs = (
        native.get("podGroupName"),
        *(labels.get(each) for each in _GANG_LABELS),
        annotations.get(_GANG_ANNOTATION),
    )
    gang = next((each for each in gangs if each), "")
    if gang:
        return f"{metadata.get('namespace', '')}/{gang}"
    owners = metadata.get("ownerReferences") or ()
    return next((str(each.get("uid")) for each in owners if each.get("controller")), "")


ASK_AGAIN: Json = {
    "type": CONDITION,
    "status": "False",
    "reason": "AskAgain",
    "message": "the scheduler extender lets kube-scheduler try this pod again",
}
"""Is written and removed: kube-scheduler tries a pod again if its status changes."""


@dataclass(slots=True)
class _Promise:
    """The cards that are kept for a pod that was told of its node, or for the pods of a pod set.

    Attributes:
        cards: the cards of each pod.
        until: when it ends, Unix seconds.
        group: the group of the pod; empty for a pod set.
    """

    cards: Sequence[CardPromise]
    until: float
    group: str = ""


class Nominations:
    """The standing of every pod, and all cards that are kept. Used under the lock of the state.

    Nominations have victims, and count for pods of the same or lower priority. Promises count for
    all: kube-scheduler goes on as if these pods ran. A promise is for one pod, by its UID, or for
    all pods of a pod set, by :attr:`placement.pods.PodInfo.promise`.
    """

    def __init__(self, leaves_within: float = LEAVES_WITHIN_SECONDS) -> None:
        """Start empty; a pod that ends in so many seconds counts as one that leaves."""
        self._leaves_within = leaves_within
        self._promises: dict[str, _Promise] = {}
        self._promised_on: dict[str, set[str]] = {}
        self._promise_of: dict[str, str] = {}
        # Pod set -> node and cards of its pods that are bound, or were told of them, by UID.
        self._used: dict[str, dict[str, tuple[str, ChosenCards]]] = {}
        self._refused: dict[str, float] = {}
        self._group_of: dict[str, str] = {}
        self._members: dict[str, set[str]] = {}  # of a group
        # Group -> how many of its pods are enough, if known, and until when that is remembered.
        self._enough: dict[str, tuple[int | None, float]] = {}
        self._standings: dict[str, PodStanding] = {}
        self._by_pod: dict[str, Nomination] = {}
        self._by_node: dict[str, dict[str, Nomination]] = {}
        self._unshown: set[str] = set()
        self._withdrawn: dict[str, Nomination] = {}
        self._bound: dict[str, PodId] = {}

    @property
    def by_pod(self) -> Mapping[str, Nomination]:
        """All nominations, by the UID of their pod."""
        return self._by_pod

    @property
    def nodes(self) -> AbstractSet[str]:
        """The nodes with cards that are kept for pods."""
        return self._by_node.keys() | self._promised_on.keys()

    def standing(self, uid: str) -> PodStanding | None:
        """Return a pod's standing; ``None`` if no watch has shown the pod."""
        return self._standings.get(uid)

    def priority(self, uid: str) -> int:
        """Return a pod's priority, the lowest of all if no watch has shown the pod."""
        standing = self._standings.get(uid)
        return -(2**31) if standing is None else standing.priority

    def find(self, uid: str) -> Nomination | None:
        """Return the nomination of a pod."""
        return self._by_pod.get(uid)

    def above(self, uid: str, node: str) -> Sequence[tuple[str, Nomination, PodInfo | None]]:
        """Return what is kept on a node that a pod may not take.

        Each with the UID of its pod, or what names its pod set; and the pod, if it is not one that
        a watch has shown.
        """
        priority = self.priority(uid)
        kept: list[tuple[str, Nomination, PodInfo | None]] = [
            (other, nomination, None)
            for other, nomination in self._by_node.get(node, {}).items()
            if other != uid and self.priority(other) >= priority
        ]
        for key in self._promised_on.get(node, ()):
            own = key in (uid, self._promise_of.get(uid))  # of which one is for the pod itself
            left = self._left(key, node, uid)[own:]
            kept += [(key, each.nomination, each.pod) for each in left]
        return kept

    def leaving(self, uids: Iterable[str], now: float) -> set[str]:
        """Return those of these pods that are about to end."""
        found = ((uid, self._standings.get(uid)) for uid in uids)
        return {
            uid
            for uid, each in found
            if each is not None and each.leaves_soon(now, self._leaves_within)
        }

    def put_pod(self, obj: Json, pod_id: PodId, *, bound: bool) -> None:
        """Read a pod as the watch shows it; bound pods need no nomination any more."""
        uid = pod_id.uid
        self._standings[uid] = read_standing(obj)
        shown = read_nomination(obj)
        if bound:
            if shown is not None:
                self._bound[uid] = pod_id
            else:
                self._bound.pop(uid, None)
            self.remove(uid)
            self._withdrawn.pop(uid, None)
        elif shown is None:
            if uid not in self._unshown:
                self.remove(uid)
            self._withdrawn.pop(uid, None)
        elif self._withdrawn.get(uid) != shown:
            self._withdrawn.pop(uid, None)
            self._set(uid, shown)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that has ended or is gone."""
        self.remove(uid)
        self.end_promise(uid)
        self._use(uid)
        self._promise_of.pop(uid, None)
        if group := self._group_of.pop(uid, ""):
            self._members[group].discard(uid)
            if not self._members[group]:
                del self._members[group]
        self._standings.pop(uid, None)
        self._withdrawn.pop(uid, None)
        self._bound.pop(uid, None)

    def add(self, uid: str, nomination: Nomination) -> None:
        """Add a nomination that has just been written, unless the watch has shown it already."""
        if self._by_pod.get(uid) != nomination:
            self._set(uid, nomination)
            self._unshown.add(uid)

    def withdraw(self, uid: str) -> None:
        """End a nomination, also while the watch still shows it."""
        if uid in self._by_pod:
            self._withdrawn[uid] = self._by_pod[uid]
            self.remove(uid)

    def restore_withdrawn(self) -> None:
        """Go by the watch alone again: another leader may go on with what was withdrawn here."""
        withdrawn, self._withdrawn = self._withdrawn, {}
        for uid, nomination in withdrawn.items():
            self._set(uid, nomination)

    def remove(self, uid: str) -> None:
        """Forget the nomination of a pod that needs none any more."""
        self._unshown.discard(uid)
        nomination = self._by_pod.pop(uid, None)
        if nomination is not None:
            on_node = self._by_node[nomination.node]
            del on_node[uid]
            if not on_node:
                del self._by_node[nomination.node]

    # --- promises -------------------------------------------------------------------------

    def identify(self, pod: PodInfo, group: str) -> None:
        """Remember of which pod set a pod is, if an admission check may keep cards for it.

        And of which group, as :func:`group_of` returns it.
        """
        if pod.promise:
            self._promise_of[pod.id.uid] = f"{pod.id.namespace}/{pod.promise}"
        if group:
            self._members.setdefault(group, set()).add(pod.id.uid)
            self._group_of[pod.id.uid] = group

    def promise(
        self, key: str, cards: Sequence[CardPromise], until: float, *, group: str = ""
    ) -> None:
        """Keep cards: *key* is the UID of a pod, or the namespace and promise of a pod set."""
        self.end_promise(key)
        self._promises[key] = _Promise(cards, until, group)
        for each in cards:
            self._promised_on.setdefault(each.nomination.node, set()).add(key)
            self._use(key, each.nomination.node, each.nomination.cards)

    def promised(self, uid: str) -> Mapping[str, CardPromise]:
        """Return the cards that are kept for a pod, by node; of a pod set, those of one pod."""
        found: dict[str, CardPromise] = {}
        for key in (self._promise_of.get(uid, ""), uid):
            promise = self._promises.get(key)
            for node in {each.nomination.node for each in promise.cards} if promise else ():
                if left := self._left(key, node, uid):
                    found[node] = left[0]
        return found

    def promised_nodes(self, uid: str) -> AbstractSet[str]:
        """Return the nodes with cards that an admission check keeps for a pod."""
        key = self._promise_of.get(uid, "")
        promise = self._promises.get(key)
        nodes = {each.nomination.node for each in promise.cards} if promise is not None else ()
        return {node for node in nodes if self._left(key, node, uid)}

    def members(self, key: str) -> AbstractSet[str]:
        """Return the UIDs of the pods of a pod set that are bound, or were told of a node."""
        return self._used.get(key, {}).keys()

    def tell(self, uid: str, cards: CardPromise, now: float, group: str) -> None:
        """Keep cards for a pod that is told of one node; its group may be empty."""
        refused = self._refused.get(group, -REFUSED_SECONDS)
        seconds = REFUSED_SECONDS if now - refused < REFUSED_SECONDS else TOLD_SECONDS
        self.promise(uid, [cards], now + seconds, group=group)

    def refuse(self, group: str, now: float) -> None:
        """Keep cards for the pods of a group only shortly: one of them fits nowhere."""
        if group:
            self._refused[group] = now
            for each in self._of_group(group):
                each.until = now + REFUSED_SECONDS

    def set_enough(self, group: str, pods: int | None, now: float) -> None:
        """Remember how many pods of a group kube-scheduler binds together, at least.

        ``None`` if that could not be read: then it is not read at each request either.
        """
        self._enough[group] = pods, now + _KNOWN_SECONDS

    def has_read_enough(self, group: str) -> bool:
        """Return whether :meth:`set_enough` was called for a group not long ago."""
        return group in self._enough

    def give_up_others(
        self, group: str, is_bound: Callable[[str], bool]
    ) -> tuple[AbstractSet[str], AbstractSet[str]]:
        """End what is kept for groups that wait; return their nodes, and these groups.

        *is_bound* returns whether a pod with this UID has a node, or a Binding in progress.

        kube-scheduler asks about all pods of one group before it goes on, so with a request about
        *group*, or about a pod without one, its decision about the others has been made.
        """
        nodes, given_up = set[str](), set[str]()
        for other in [each for each in self._refused if each != group]:
            enough, _ = self._enough.get(other, (None, 0.0))
            if enough is None:
                continue
            kept = [key for key, each in self._promises.items() if each.group == other]
            bound = sum(map(is_bound, self._members.get(other, ())))
            del self._refused[other]
            if len(kept) + bound < enough:
                given_up.add(other)
                nodes.update(node for key in kept for node in self.end_promise(key))
        return nodes, given_up

    def prolong(self, group: str, now: float) -> None:
        """Keep the cards of a group some more: kube-scheduler asks about another of its pods."""
        for each in self._of_group(group):
            each.until = max(each.until, now + REFUSED_SECONDS)

    def _of_group(self, group: str) -> Iterable[_Promise]:
        return [each for each in self._promises.values() if group and each.group == group]

    def set_bound(self, uid: str, node: str, cards: ChosenCards | None = None) -> None:
        """Count a pod as bound to a node, or as not bound if the node is empty."""
        self.end_promise(uid)
        self._use(uid, node, cards or {})

    def end_promise(self, key: str) -> Sequence[str]:
        """End a promise, if there is one; return its nodes."""
        promise = self._promises.pop(key, None)
        if promise is None:
            return ()
        self._use(key)
        nodes = {each.nomination.node for each in promise.cards}
        for node in nodes:
            self._promised_on[node].discard(key)
            if not self._promised_on[node]:
                del self._promised_on[node]
        return sorted(nodes)

    def take_expired(self, now: float) -> tuple[AbstractSet[str], AbstractSet[str]]:
        """End the promises whose time is over; return their nodes, and their groups."""
        over = {key: each.group for key, each in self._promises.items() if each.until < now}
        self._refused = {
            group: at for group, at in self._refused.items() if now - at < REFUSED_SECONDS
        }
        self._enough = {group: each for group, each in self._enough.items() if each[1] > now}
        return {node for key in over for node in self.end_promise(key)}, {*over.values()}

    def _use(self, uid: str, node: str = "", cards: ChosenCards | None = None) -> None:
        """Count a pod of a pod set on a node; on none if the node is empty."""
        pod_set = self._promise_of.get(uid)
        if pod_set is None:
            return
        used = self._used.setdefault(pod_set, {})
        used.pop(uid, None)
        if node:
            used[uid] = node, cards or {}
        elif not used:
            del self._used[pod_set]

    def _left(self, key: str, node: str, without: str) -> Sequence[CardPromise]:
        """Return what is kept on a node by one promise, as if pod *without* had no cards yet."""
        kept = [each for each in self._promises[key].cards if each.nomination.node == node]
        used, others = self._used.get(key, {}), 0
        for cards in [cards for uid, (at, cards) in used.items() if at == node and uid != without]:
            found = next((each for each in kept if each.nomination.cards == cards), None)
            if found is not None:
                kept.remove(found)
            else:
                others += 1  # it has got other cards than those that were kept
        return kept[others:]

    def take_bound(self) -> Mapping[str, PodId]:
        """Return the pods that are bound and still have the condition, each once."""
        bound, self._bound = self._bound, {}
        return bound

    def _set(self, uid: str, nomination: Nomination) -> None:
        self.remove(uid)
        standing = self._standings.get(uid)
        if standing is not None and standing.ends_at is not None:
            return  # it may be there for long, because of its finalizers, but is not bound any more
        self._by_pod[uid] = nomination
        self._by_node.setdefault(nomination.node, {})[uid] = nomination
