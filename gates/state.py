"""The cluster as the watches show it, with the workloads, flavors and labels of nodes. No I/O."""

import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from contract.names import Names
from placement.cluster.nominations import CardPromise
from placement.cluster.selectors import Taint, read_taints
from placement.cluster.workloads import CONTROLLER, Flavor, Workload, read_flavor, read_workload
from placement.scoring import Policy
from scheduler.state import State

Json = dict[str, Any]
_LONGEST_GRACE = 3600.0
"""A pod that ends later, in seconds, counts as one that stays."""


@dataclass(frozen=True, slots=True)
class NodeTerms:
    """What decides which pods may get a node, beside its cards.

    Attributes:
        labels: its labels.
        taints: its taints that keep pods away.
        problem: why no new pod is sent to it; empty if some may be.
    """

    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    problem: str = ""


def read_terms(obj: Mapping[str, Any]) -> NodeTerms:
    """Read a node object."""
    spec = obj.get("spec") or {}
    conditions = (obj.get("status") or {}).get("conditions") or ()
    problem = "the node is cordoned" if spec.get("unschedulable") else ""
    for each in conditions:
        if each.get("type") == "Ready" and each.get("status") != "True":
            problem = "the node is not ready"
    labels = obj["metadata"].get("labels") or {}
    return NodeTerms(
        {str(key): str(value) for key, value in labels.items()}, read_taints(spec), problem
    )


class GateState(State):
    """The state of the extender, and what decides about workloads. Hold :attr:`lock` as there.

    Attributes:
        changed: set when a workload may have to be decided.
    """

    def __init__(self, names: Names, policy: Policy = Policy.BINPACK, **more: Any) -> None:
        super().__init__(names, policy, preempts=True, leaves_within=_LONGEST_GRACE, **more)
        self.changed = threading.Event()
        self._terms: dict[str, NodeTerms] = {}
        self._workloads: dict[str, Workload] = {}
        self._flavors: dict[str, Flavor] = {}
        self._checks: dict[str, Json] = {}
        # Workload -> cards that are kept until it has quota, and until when.
        self._offers: dict[str, tuple[Mapping[str, Sequence[CardPromise]], float]] = {}

    def terms(self, node: str) -> NodeTerms:
        """Return what is known of a node."""
        return self._terms.get(node, NodeTerms({}))

    @property
    def flavors(self) -> Mapping[str, Flavor]:
        """All ResourceFlavors, by name."""
        with self.lock:
            return dict(self._flavors)

    @property
    def checks(self) -> Mapping[str, Json]:
        """Our AdmissionChecks, by name."""
        with self.lock:
            return dict(self._checks)

    def waiting(self) -> list[tuple[Workload, Mapping[str, Any]]]:
        """Return the workloads that wait for our answer, each with the state of its check.

        The highest priority is first, then the one whose quota was reserved first.
        """
        found = [each for each in self._checked("Pending") if each[0].reserved]
        return sorted(found, key=lambda each: (-each[0].priority, each[0].since, each[0].uid))

    def without_quota(self, state: str) -> list[tuple[Workload, Mapping[str, Any]]]:
        """Return the workloads that have no quota, or lose it, and whose check has this state.

        The highest priority is first, then the oldest.
        """
        found = [each for each in self._checked(state) if each[0].queued]
        return sorted(found, key=lambda each: (-each[0].priority, each[0].created, each[0].uid))

    def has_preempted(self, workload: Workload) -> bool:
        """Return whether Kueue has evicted others for a workload: it names its UID to them."""
        with self.lock:
            return any(
                each["type"] == "Preempted" and workload.uid in each.get("message", "")
                for other in self._workloads.values()
                for each in other.conditions
            )

    def _checked(self, state: str) -> list[tuple[Workload, Mapping[str, Any]]]:
        with self.lock:
            return [
                (workload, check)
                for workload in self._workloads.values()
                for check in workload.checks
                if check.get("name") in self._checks and check.get("state") == state
            ]

    def offer(
        self, workload: Workload, cards: Mapping[str, Sequence[CardPromise]], until: float
    ) -> None:
        """Keep cards for a workload until it has quota and is answered, or the time is over."""
        with self.lock:
            self._offers[workload.uid] = cards, until
            self.set_promises(workload, cards, until)

    # --- what the watches show ------------------------------------------------------------

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """Add or update a node."""
        with self.lock:
            terms, name = read_terms(obj), obj["metadata"]["name"]
            if self._terms.get(name) != terms:
                self._terms[name] = terms
                self._touch(name)
            super().put_node(obj)
        self.changed.set()

    def drop_node(self, name: str) -> None:
        """Remove a node."""
        with self.lock:
            self._terms.pop(name, None)
            super().drop_node(name)

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """Add or update a pod."""
        super().put_pod(obj)
        self.changed.set()

    def drop_pod(self, uid: str) -> None:
        """Remove a pod."""
        super().drop_pod(uid)
        self.changed.set()

    def put_workload(self, obj: Mapping[str, Any]) -> None:
        """Add or update a workload; one that is not waiting any more keeps what it was promised."""
        with self.lock:
            workload = read_workload(obj, self.names)
            self._workloads[workload.uid] = workload
            super().put_workload(obj)
            cards, until = self._offers.get(workload.uid, ({}, 0.0))
            if until > self.now() and not workload.promises()[1]:
                self.set_promises(workload, cards, until)
            else:
                self._offers.pop(workload.uid, None)
        self.changed.set()

    def drop_workload(self, uid: str) -> None:
        """Remove a workload."""
        with self.lock:
            self._workloads.pop(uid, None)
            self._offers.pop(uid, None)
            super().drop_workload(uid)
        self.changed.set()

    def known_workloads(self) -> AbstractSet[str]:
        """Return the UIDs of all workloads."""
        with self.lock:
            return set(self._workloads)

    def put_flavor(self, obj: Json) -> None:
        """Add or update a ResourceFlavor."""
        with self.lock:
            self._flavors[obj["metadata"]["name"]] = read_flavor(obj)
        self.changed.set()

    def drop_flavor(self, obj: Json) -> None:
        """Remove a ResourceFlavor."""
        with self.lock:
            self._flavors.pop(obj["metadata"]["name"], None)

    def put_check(self, obj: Json) -> None:
        """Add or update an AdmissionCheck, if it is ours."""
        with self.lock:
            name = obj["metadata"]["name"]
            if (obj.get("spec") or {}).get("controllerName") == CONTROLLER:
                self._checks[name] = obj
            else:
                self._checks.pop(name, None)
        self.changed.set()

    def drop_check(self, obj: Json) -> None:
        """Remove an AdmissionCheck."""
        with self.lock:
            self._checks.pop(obj["metadata"]["name"], None)
