"""The cluster as the watches show it, plus the pods that this process has just bound. No I/O.

A pod counts on its node until it has ended: succeeded, failed, or gone from the API. A pod that is
being bound is assumed on its node: it counts until the watch shows it, it is gone, or its Binding
has surely failed; it does not expire.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import takewhile
from typing import Any

from contract.claims import named_template
from contract.inventory import Amounts
from contract.names import Names
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.node_allocations import ClusterAllocations, NodeAllocations
from placement.cluster.nodes import parse_node
from placement.cluster.nominations import CardPromise, kept_amounts
from placement.cluster.workloads import Workload, read_workload
from placement.held import HeldAmounts
from placement.pods import PodInfo, read_gpu_pod
from placement.scoring import Policy
from scheduler.nominations import LEAVES_WITHIN_SECONDS, Nominations, group_of


def read_undecided(obj: Mapping[str, Any], names: Names) -> PodInfo | None:
    """Read a pod whose cards the extender chooses.

    ``None`` if it requests no GPU, or has a claim: kube-scheduler itself chooses the cards of
    claims, and only the agent's annotation shows them.
    """
    return None if named_template(obj) else read_gpu_pod(obj, names)


class State:
    """Nodes, pods, and what is free. Hold :attr:`lock` to read more than one value.

    There is one lock for all nodes: a decision takes less than a millisecond, and Python runs one
    thread at a time anyway. No request is sent while it is held.
    """

    def __init__(
        self,
        names: Names,
        policy: Policy = Policy.BINPACK,
        *,
        preempts: bool = False,
        leaves_within: float = LEAVES_WITHIN_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start with an empty cluster.

        The *policy*, how a share's card is chosen, must be the agents'. Only if it *preempts* may
        pods be nominated; else no condition of a pod counts. A pod that ends in *leaves_within*
        seconds counts as one that leaves. *now* returns Unix seconds.
        """
        self.names = names
        self.policy = policy
        self.nominations = Nominations(leaves_within)
        """The cards that are kept for pods."""
        self.preempts = preempts
        self.now = now
        self.lock = threading.RLock()
        self._allocations = ClusterAllocations(policy)
        self._node_of: dict[str, str] = {}
        self._unbound: dict[str, PodInfo] = {}
        # Pod -> nodes to which this process has bound it or tries to, until a watch shows it.
        # There may be several: after an uncertain Binding, kube-scheduler may try another node.
        self._assumed: dict[str, set[str]] = {}
        self._version = 0
        self._changed: dict[str, int] = {}
        self._nodes: set[str] = set()
        self._promised: dict[str, tuple[float, str]] = {}  # pod set -> age and UID of the workload

    @property
    def version(self) -> int:
        """The number of the newest change of any node's allocations."""
        return self._version

    @property
    def assumed(self) -> int:
        """The number of assumed pods."""
        return len(self._assumed)

    @property
    def nominated(self) -> int:
        """The number of pods for which others are evicted."""
        return len(self.nominations.by_pod)

    @property
    def promised(self) -> int:
        """The number of workloads of Kueue for which cards are kept."""
        with self.lock:
            return len({uid for _, uid in self._promised.values()})

    @property
    def counts(self) -> tuple[int, int]:
        """The number of known nodes, and of pods that count on a node by the watch."""
        return len(self._nodes), len(self._node_of)

    @property
    def node_names(self) -> AbstractSet[str]:
        """The names of the known nodes."""
        with self.lock:
            return frozenset(self._nodes)

    def changed_since(self, version: int) -> list[str]:
        """Return the nodes whose allocations have changed after *version*, the newest first."""
        newest = takewhile(lambda each: each[1] > version, reversed(self._changed.items()))
        return [name for name, _ in newest]

    def allocations(self, name: str) -> NodeAllocations | None:
        """Return the allocations of a node; ``None`` if there is no such node.

        Hold :attr:`lock` as long as these are used: a read keeps the snapshot that it makes, also
        if another thread changes the node meanwhile.
        """
        return self._allocations.get(name) if name in self._nodes else None

    def find(self, uid: str) -> PodInfo | None:
        """Return a pod that is not bound yet, if the watch has shown it."""
        with self.lock:
            return self._unbound.get(uid)

    def unbound(self) -> list[PodInfo]:
        """Return all pods that are not bound, and that no Binding is in progress for."""
        with self.lock:
            return [pod for uid, pod in self._unbound.items() if uid not in self._assumed]

    def assumed_on(self, uid: str) -> AbstractSet[str]:
        """Return the nodes on which a pod is assumed."""
        return self._assumed.get(uid, set())

    def node_of(self, uid: str) -> str:
        """Return the node on which the watch shows a pod; empty if it shows none."""
        return self._node_of.get(uid, "")

    def snapshot_for(self, uid: str, allocations: NodeAllocations) -> NodeSnapshot:
        """Return a node as one pod finds it: without itself, and without what is kept for others.

        What is kept is in part still held by pods that are being evicted. So a card has free what
        is free now and also once they are gone.
        """
        now = allocations.snapshot_without(uid)
        if not self.nominations.above(uid, allocations.node.name):
            return now
        held, _ = self.held_later(uid, allocations)
        rows = zip(now.free, held.free, strict=True)
        return NodeSnapshot(now.node, [Amounts(*map(min, *pair)) for pair in rows])

    def held_later(
        self, uid: str, allocations: NodeAllocations
    ) -> tuple[HeldAmounts, AbstractSet[str]]:
        """Return what one pod finds held on a node once all have ended that leave it anyway.

        These are pods that are about to end, and victims of other nominations. What is kept for the
        nominated pods counts as held.

        Returns:
            The held amounts, without the pod itself; the UIDs of those that leave.
        """
        kept = self.nominations.above(uid, allocations.node.name)
        leaving = self.nominations.leaving(allocations.pods, self.now())
        gone = leaving.union(*(nomination.victims for _, nomination, _ in kept))
        held = allocations.held_without({uid, *gone})
        for other, nomination, known in kept:
            pod = known or self._unbound.get(other)
            if pod is None or other in allocations.pods:
                continue  # it counts on the node itself
            held = held.add(kept_amounts(pod, nomination, allocations.node))
        return held, gone

    # --- nodes ----------------------------------------------------------------------

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """Add or update a node."""
        with self.lock:
            name = obj["metadata"]["name"]
            allocations = self._allocations[name]
            node = parse_node(obj, self.names, allocations.node)
            known = name in self._nodes
            self._nodes.add(allocations.node.name)
            if node is not allocations.node:
                allocations.set_node(node)
            elif known:
                return
            self._touch(name)

    def drop_node(self, name: str) -> None:
        """Remove a node; its pods stay until they are removed themselves."""
        with self.lock:
            self._nodes.discard(name)
            self._forget_empty(name)
            self._touch(name)

    def replace_nodes(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Replace all nodes."""
        with self.lock:
            missing = set(self._nodes)
            for obj in objects:
                self.put_node(obj)
                missing.discard(obj["metadata"]["name"])
            for name in missing:
                self.drop_node(name)

    # --- pods -----------------------------------------------------------------------

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """Add or update a pod."""
        uid = obj["metadata"].get("uid", "")
        pod = read_gpu_pod(obj, self.names)
        with self.lock:
            if pod is None or pod.terminal:
                self.drop_pod(uid)
                return
            self.nominations.identify(pod, group_of(obj))
            if self.preempts:
                self.nominations.put_pod(obj, pod.id, bound=bool(pod.node))
            if pod.node:
                self._put_bound(pod)
            elif not named_template(obj):
                self._unbound[uid] = pod

    def drop_pod(self, uid: str) -> None:
        """Remove a pod that has ended or is gone."""
        with self.lock:
            self._unbound.pop(uid, None)
            self.confirm_binding(uid, "")
            self._remove_bound(uid)
            for name in self.nominations.promised(uid).keys() & self._nodes:
                self._touch(name)
            self.nominations.drop_pod(uid)

    def known_pods(self) -> AbstractSet[str]:
        """Return the UIDs of all known pods; call it before a list, for :meth:`forget_missing`."""
        with self.lock:
            return {*self._node_of, *self._unbound, *self._assumed}

    def forget_missing(self, known: AbstractSet[str], listed: AbstractSet[str]) -> None:
        """Remove the pods that were :meth:`known_pods` before a list and are not in it."""
        with self.lock:
            for uid in known - listed:
                self.drop_pod(uid)

    # --- workloads of Kueue -------------------------------------------------------------

    def put_workload(self, obj: Mapping[str, Any]) -> None:
        """Add or update a workload: keep the cards that an admission check has promised to it."""
        workload = read_workload(obj, self.names)
        with self.lock:
            until, promises = workload.promises()
            self.set_promises(workload, promises, until)

    def drop_workload(self, uid: str) -> None:
        """Remove a workload."""
        with self.lock:
            self._end_promises(uid)

    def known_workloads(self) -> AbstractSet[str]:
        """Return the UIDs of all workloads with promises."""
        with self.lock:
            return {uid for _, uid in self._promised.values()}

    def set_promises(
        self, workload: Workload, promises: Mapping[str, Sequence[CardPromise]], until: float
    ) -> None:
        """Replace the promises to a workload, each by the name of a pod set.

        The workloads of an elastic job share them: the last one with quota counts.
        """
        with self.lock:
            self._end_promises(workload.uid)
            for pod_set, cards in promises.items() if until >= self.now() else ():
                key = workload.key(pod_set)
                if self._promised.get(key, (0.0, ""))[0] <= workload.since:
                    self._promised[key] = workload.since, workload.uid
                    self.nominations.promise(key, cards, until)

    def _end_promises(self, uid: str) -> None:
        for key in [key for key, (_, owner) in self._promised.items() if owner == uid]:
            del self._promised[key]
            for name in self.nominations.end_promise(key):
                self._touch(name)

    # --- assumed pods -----------------------------------------------------------------

    def assume(self, pod: PodInfo) -> None:
        """Count a pod on the node to which it is about to be bound."""
        with self.lock:
            self._assumed.setdefault(pod.id.uid, set()).add(pod.node)
            self._allocations[pod.node].add_pod(pod)
            self.nominations.set_bound(pod.id.uid, pod.node, pod.chosen)
            self._touch(pod.node)

    def end_expired_promises(self) -> AbstractSet[str]:
        """Let others have the cards that were kept for a time that is over; return the groups."""
        with self.lock:
            nodes, groups = self.nominations.take_expired(self.now())
            for name in sorted(nodes):
                self._touch(name)
            return groups

    def give_up_other_groups(self, group: str) -> AbstractSet[str]:
        """Let others have the cards of groups that wait; return these groups.

        See :meth:`scheduler.nominations.Nominations.give_up_others`.
        """
        with self.lock:
            nodes, groups = self.nominations.give_up_others(
                group, lambda uid: bool(self.node_of(uid) or self.assumed_on(uid))
            )
            for name in sorted(nodes):
                self._touch(name)
            return groups

    def confirm_binding(self, uid: str, node: str) -> None:
        """Forget the pod on all other nodes: its Binding to *node* succeeded."""
        with self.lock:
            for other in [each for each in self._assumed.get(uid, ()) if each != node]:
                self.forget_assumed(uid, other)

    def forget_assumed(self, uid: str, node: str) -> None:
        """Forget the pod on *node*: its Binding to it failed."""
        with self.lock:
            nodes = self._assumed.get(uid, set())
            if node in nodes:
                nodes.discard(node)
                if not nodes:
                    del self._assumed[uid]
                if self._node_of.get(uid) != node:
                    others = self._assumed.get(uid, ())
                    self.nominations.set_bound(uid, next(iter(others), self.node_of(uid)))
                    self._allocations[node].remove_pod(uid)
                    self._forget_empty(node)
                    self._touch(node)

    def _put_bound(self, pod: PodInfo) -> None:
        uid = pod.id.uid
        self._unbound.pop(uid, None)
        self.confirm_binding(uid, pod.node)
        self._assumed.pop(uid, None)
        self.nominations.set_bound(uid, pod.node, pod.chosen)
        if self._node_of.get(uid, pod.node) != pod.node:
            self._remove_bound(uid)
        allocations = self._allocations[pod.node]
        self._node_of[uid] = pod.node
        if allocations.pods.get(uid) == pod:
            return
        before = allocations.holding(uid)
        allocations.add_pod(pod)
        if before is None or allocations.holding(uid) != before:
            self._touch(pod.node)

    def _remove_bound(self, uid: str) -> None:
        name = self._node_of.pop(uid, None)
        if name is not None:
            self._allocations[name].remove_pod(uid)
            self._forget_empty(name)
            self._touch(name)

    def _forget_empty(self, name: str) -> None:
        """Forget a deleted node, unless it still has pods."""
        found = self._allocations.get(name)
        if name not in self._nodes and found is not None and not found.pods:
            del self._allocations[name]

    def _touch(self, name: str) -> None:
        self._version += 1
        self._changed.pop(name, None)
        self._changed[name] = self._version
