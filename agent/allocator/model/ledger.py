"""Who holds which places: in memory, rebuilt from the kubelet's own record.

Invariants, checked by :meth:`Ledger.check`:

- a place is held by at most one pod;
- within a pod it is held by at most one container that is not an ordinary init
  container (the kubelet hands what those free to later containers, fact K7).

The structure is not safe to share between threads: its owner locks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

from agent.allocator.model.pod_view import PodId
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.model.tickets import card_of
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource


class ContainerRef(NamedTuple):
    """A container of a pod; a tuple for the reason that :class:`PodId` is one."""

    pod: PodId
    container: str

    def __str__(self) -> str:
        """Write pod and container on one line."""
        return f"{self.pod} container {self.container}"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one container holds of one resource.

    Attributes:
        ids: device IDs.
        evidence: how it was settled that they are this container's.
        proven: the kubelet's record has shown it.
        answered: it was given out in an answer to the kubelet that is registered now.
    """

    ids: frozenset[str]
    evidence: Evidence
    proven: bool = False
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong guess that the kubelet's record corrected."""

    resource: Resource
    ids: frozenset[str]
    guessed: ContainerRef
    proven: ContainerRef


_NO_CLAIMS: frozenset[ContainerRef] = frozenset()


Places = Mapping[Resource, frozenset[str]]
"""Device IDs, by resource."""


class Ledger:
    """The held places, by container and by resource."""

    def __init__(self) -> None:
        """Start empty."""
        self._kinds: dict[ContainerRef, ContainerKind] = {}
        self._holdings: dict[ContainerRef, dict[Resource, Holding]] = {}
        self._places: dict[ContainerRef, Places] = {}  # the same, without all else
        self._owners: dict[tuple[Resource, str], PodId] = {}
        self._by_pod: dict[PodId, set[ContainerRef]] = {}
        self._nameless: set[ContainerRef] = set()  # of pods known by name alone
        self._held: dict[Resource, set[str]] = {resource: set() for resource in Resource}
        self._counts: dict[Resource, Counter[str]] = {each: Counter() for each in Resource}
        self._changed: set[PodId] = set()
        self._known: set[PodId] = set()
        self._listed: set[PodId] | None = None  # not known of this kubelet

    @property
    def known(self) -> AbstractSet[PodId]:
        """Pods that this kubelet was answered for or has listed."""
        return self._known

    @property
    def unlisted(self) -> AbstractSet[PodId]:
        """Pods that hold places and that the last ``List`` did not show.

        A kubelet that has just restarted may not have come to them (K11).
        """
        return frozenset() if self._listed is None else self._by_pod.keys() - self._listed

    def no_longer_listed(self, pod: PodId) -> bool:
        """Return whether this kubelet knew a pod and lists it no more: it ended or was rejected."""
        return self._listed is not None and pod in self._known and pod not in self._listed

    def all_no_longer_listed(self) -> AbstractSet[PodId]:
        """Return the pods that this kubelet knew and lists no more."""
        return self._known - self._listed if self._listed is not None else frozenset()

    def places(self) -> dict[ContainerRef, Places]:
        """Return the device IDs that each container holds now, by resource."""
        return dict(self._places)

    @property
    def owners(self) -> Mapping[tuple[Resource, str], PodId]:
        """Which pod holds each held place."""
        return self._owners

    def held(self, resource: Resource) -> AbstractSet[str]:
        """Return every place of *resource* that somebody holds."""
        return self._held[resource]

    def count(self, resource: Resource) -> Mapping[str, int]:
        """Count the held places of *resource* by card."""
        return self._counts[resource]

    def take_changed(self) -> set[PodId]:
        """Return the pods whose holdings have changed since this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def refs(self) -> Iterator[tuple[ContainerRef, ContainerKind, Mapping[Resource, Holding]]]:
        """Walk all containers that hold something, sorted."""
        for ref in sorted(self._holdings):
            yield ref, self._kinds[ref], self._holdings[ref]

    @property
    def pods(self) -> AbstractSet[PodId]:
        """The pods that hold something."""
        return self._by_pod.keys()

    def holding(self, ref: ContainerRef, resource: Resource) -> Holding | None:
        """Return what *ref* holds of *resource*."""
        return self._holdings.get(ref, {}).get(resource)

    def pod_refs(self, pod: PodId) -> list[ContainerRef]:
        """Return the containers of *pod* that hold something, sorted."""
        return sorted(self._by_pod.get(pod, ()))

    def find(self, resource: Resource, ids: frozenset[str]) -> list[ContainerRef]:
        """Find the containers that hold exactly *ids*; several after a reuse (fact K7)."""
        owner = self._owners.get((resource, next(iter(ids), "")))
        if owner is None:
            return []
        return [
            ref
            for ref in self.pod_refs(owner)
            if (held := self.holding(ref, resource)) is not None and held.ids == ids
        ]

    @property
    def has_nameless(self) -> bool:
        """Whether pods that are known by name alone hold anything."""
        return bool(self._nameless)

    def holds(self, ref: ContainerRef) -> bool:
        """Return whether *ref* holds anything."""
        return ref in self._holdings

    def kind(self, ref: ContainerRef) -> ContainerKind:
        """Return the kind of a container that holds something."""
        return self._kinds[ref]

    def taken(self, resource: Resource, device_id: str, *, but_reusable_by: PodId) -> bool:
        """Return whether a place is out of reach for a new container of *but_reusable_by*.

        What the pod's own ordinary init containers hold is within reach (fact K7).
        """
        owner = self._owners.get((resource, device_id))
        if owner is None:
            return False
        if owner != but_reusable_by:
            return True
        return any(
            device_id in held.ids
            for ref in self.pod_refs(owner)
            if self._kinds[ref] is not ContainerKind.INIT
            and (held := self.holding(ref, resource)) is not None
        )

    def assign(
        self, ref: ContainerRef, kind: ContainerKind, resource: Resource, holding: Holding
    ) -> None:
        """Assign *holding* to a container, instead of what it held of *resource* before."""
        self._drop(ref, resource)
        self._changed.add(ref.pod)
        if holding.answered:
            self._known.add(ref.pod)
            if self._listed is not None:
                self._listed.add(ref.pod)
        self._kinds[ref] = kind
        self._holdings.setdefault(ref, {})[resource] = holding
        self._places[ref] = {**self._places.get(ref, {}), resource: holding.ids}
        self._by_pod.setdefault(ref.pod, set()).add(ref)
        if not ref.pod.uid:
            self._nameless.add(ref)
        for device_id in holding.ids:
            self._owners[resource, device_id] = ref.pod
        fresh = holding.ids - self._held[resource]
        self._held[resource] |= fresh
        self._counts[resource].update(map(card_of, fresh))

    def prove(self, ref: ContainerRef, resource: Resource) -> None:
        """Record that the kubelet's record shows this holding; what was guessed is known now."""
        held = self._holdings[ref][resource]
        if held.proven and held.evidence is not Evidence.ORDER:
            return
        guessed = held.evidence is Evidence.ORDER
        evidence = Evidence.RECORD if guessed else held.evidence
        self._holdings[ref][resource] = replace(held, evidence=evidence, proven=True)
        if guessed:
            self._changed.add(ref.pod)

    def new_kubelet(self) -> None:
        """Apply that the plugin has registered anew: nothing was answered to this kubelet."""
        self._known.clear()
        self._listed = None
        for holdings in self._holdings.values():
            for resource, held in holdings.items():
                if held.answered:
                    holdings[resource] = replace(held, answered=False)

    def note_listed(self, listed: AbstractSet[PodId], live: AbstractSet[PodId]) -> None:
        """Record which pods this kubelet lists.

        Args:
            listed: these.
            live: pods that the API shows bound here and not finished.
        """
        gone = self._known.difference(live, self._by_pod)
        self._known = (self._known - gone) | listed
        self._listed = set(listed)

    def release(self, ref: ContainerRef, resource: Resource) -> None:
        """Forget what a container holds of one resource."""
        self._drop(ref, resource)

    def release_container(self, ref: ContainerRef) -> None:
        """Forget one container."""
        for resource in tuple(self._holdings.get(ref, ())):
            self._drop(ref, resource)

    def release_pod(self, pod: PodId) -> bool:
        """Forget a pod; tell whether it held anything."""
        refs = self.pod_refs(pod)
        for ref in refs:
            self.release_container(ref)
        return bool(refs)

    def release_unproven(self, pod: PodId) -> None:
        """Forget what *pod* holds by a guess that the kubelet's record has not proven."""
        for ref in self.pod_refs(pod):
            for resource, held in tuple(self._holdings[ref].items()):
                if not held.proven:
                    self._drop(ref, resource)

    def release_inits(self, pod: PodId) -> None:
        """Forget what the ordinary init containers of *pod* hold."""
        for ref in self.pod_refs(pod):
            if self._kinds[ref] is ContainerKind.INIT:
                self.release_container(ref)

    def adopt_names(self, present: AbstractSet[PodId]) -> None:
        """Move what a pod known by name alone holds to its UID, once the API has told it."""
        nameless = sorted(self._nameless)
        if not nameless:
            return
        # One that has holdings of its own is another pod of the same name.
        by_key = {pod.key: pod for pod in sorted(present) if pod.uid and pod not in self._by_pod}
        for ref in nameless:
            pod = by_key.get(ref.pod.key)
            if pod is not None:
                for pods in (self._known, self._listed or set()):
                    if ref.pod in pods:
                        pods.add(pod)
                kind, holdings = self._kinds[ref], dict(self._holdings[ref])
                self.release_container(ref)
                for resource, held in holdings.items():
                    self.assign(ContainerRef(pod, ref.container), kind, resource, held)

    def hand_over(self, pod: PodId, to: PodId) -> None:
        """Assign all that *pod* holds to another pod: they were taken for each other."""
        for ref in self.pod_refs(pod):
            kind, holdings = self._kinds[ref], dict(self._holdings[ref])
            self.release_container(ref)
            for resource, held in holdings.items():
                self.assign(ContainerRef(to, ref.container), kind, resource, held)

    def agrees(self, entry: MatchedPod) -> bool:
        """Return whether the ledger has exactly what ``List`` shows of a pod, and as proven.

        Of ordinary init containers ``List`` says nothing (K4), whatever they hold.
        """
        lasting = {
            ref
            for ref in self._by_pod.get(entry.pod, _NO_CLAIMS)
            if self._kinds[ref] is not ContainerKind.INIT
        }
        shown = 0
        for container in entry.listed.containers:
            if not container.held:
                continue
            ref = ContainerRef(entry.pod, container.name)
            holdings = self._holdings[ref] if ref in lasting else {}
            if holdings.keys() != container.held.keys():
                return False
            for resource, ids in container.held.items():
                held = holdings[resource]
                if not held.proven or held.ids != ids:
                    return False
            shown += 1
        return shown == len(lasting)

    def take_back(self, pod: PodId, free: AbstractSet[tuple[Resource, str]]) -> None:
        """Release the containers of *pod* that hold any of these places, which are free."""
        for ref in self.pod_refs(pod):
            if self.given_back(ref, free):
                self.release_container(ref)

    def given_back(
        self, ref: ContainerRef, free: AbstractSet[tuple[Resource, str]]
    ) -> list[Resource]:
        """Return the resources of which *ref* holds places that are free."""
        return [
            resource
            for resource, held in self._holdings[ref].items()
            if any((resource, device_id) in free for device_id in held.ids)
        ]

    def give_way(self, ref: ContainerRef, resource: Resource, ids: frozenset[str]) -> None:
        """Forget other holders of places that the kubelet's record shows with *ref*.

        That is a pod which is not listed yet and was guessed while there was no witness.
        """
        pods = {self._owners[key] for each in ids if (key := (resource, each)) in self._owners}
        for pod in sorted(pods):
            for other in self.pod_refs(pod):
                handed_on = pod == ref.pod and self._kinds[other] is ContainerKind.INIT
                held = self.holding(other, resource)
                if held is not None and not handed_on and not held.ids.isdisjoint(ids):
                    self._drop(other, resource)

    def _drop(self, ref: ContainerRef, resource: Resource) -> None:
        held = self._holdings.get(ref, {}).pop(resource, None)
        if held is None:
            return
        self._changed.add(ref.pod)
        self._places[ref] = {
            each: ids for each, ids in self._places[ref].items() if each != resource
        }
        if not self._holdings[ref]:
            del self._places[ref]
            del self._holdings[ref]
            del self._kinds[ref]
            self._nameless.discard(ref)
            self._by_pod[ref.pod].discard(ref)
            if not self._by_pod[ref.pod]:
                del self._by_pod[ref.pod]
        still_held = {
            device_id
            for other in self.pod_refs(ref.pod)
            if (kept := self.holding(other, resource)) is not None
            for device_id in kept.ids
        }
        free = {
            each for each in held.ids - still_held if self._owners.get((resource, each)) == ref.pod
        }
        for device_id in free:
            del self._owners[resource, device_id]
        self._held[resource] -= free
        self._counts[resource].subtract(map(card_of, free))
