"""``PreStartContainer``: verifies that the starting container holds the slots of the call."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.allocator.grants import (
    Grant,
    check_parts,
    check_request,
    check_together,
    grant_of,
    translate,
)
from agent.allocator.guesses import find_halves, has_guess, is_guessed
from agent.allocator.identity import kubelet_uid
from agent.allocator.interfaces import Checkpoint, Containers, DecisionLog, HeldSlots
from agent.allocator.node_state import NodeState
from agent.allocator.observer import KubeletObserver
from agent.allocator.slot_holdings import holding_of, starting
from agent.allocator.slots import DeviceTable
from agent.errors import GrantError, Refusal
from agent.holdings.annotation import AllocationPublisher
from agent.holdings.core import Enforcement
from agent.holdings.holding import UNKNOWN, ContainerRef
from contract.allocation import Evidence
from contract.demand import ContainerDemand
from contract.resource import Resource
from contract.wishes import NO_WISHES
from placement.capacity import is_for_shares, may_get_instances
from placement.pods import PodId, PodInfo
from placement.topology import Links

# How often the checkpoint is read until it has these slots, and the pause between in seconds: it
# may lack the newest container (K33). The kubelet's timeout for this call is 30 s (K10).
_CHECKPOINT_READS = 20
_PAUSE_S = 0.05

Pause = Callable[[float], object]
"""Waits so many seconds."""


@dataclass(frozen=True, slots=True)
class _Proof:
    """The starting container, as the checkpoint proves it.

    Attributes:
        uid: its pod's UID in the kubelet.
        ref: the container; its pod has no name if only the checkpoint has it.
        info: its pod in the API.
        held: the slots of its pod's containers.
    """

    uid: str
    ref: ContainerRef
    info: PodInfo | None
    held: Containers


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStartCall:
    """``PreStartContainer``: allows a start, vetoes it, or allows it without proof."""

    state: NodeState
    table: DeviceTable
    observer: KubeletObserver
    enforcement: Enforcement
    publisher: AllocationPublisher
    decision_log: DecisionLog
    pause: Pause = time.sleep

    def handle(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """Return if the container that holds these slots may start.

        Raises:
            Refusal: the container's slots contradict its request; the start is vetoed.
        """
        ids = frozenset(device_ids)
        ref: ContainerRef | None = None
        try:
            self.table.read(resource, device_ids)  # raises for IDs of another plugin
            proof = self._prove(resource, ids)
            if proof is not None:
                ref = proof.ref if proof.ref.pod.name else None  # the pod's name is not known
                self._check(proof, resource, ids)
                self._publish(proof, resource)
            if resource is Resource.CORE and self.enforcement.limits:
                self._start(proof, ids)
        except Refusal as error:
            self.decision_log.refused("prestart", ref, resource, len(device_ids), str(error))
            raise
        if ref is not None:
            self.decision_log.decided("prestart", ref, resource, Evidence.RECORD, ids)

    def _prove(self, resource: Resource, ids: frozenset[str]) -> _Proof | None:
        """Find the container that holds these slots in the checkpoint; report if none does.

        Raises:
            GrantError: by ``List``, or by our own assignments, their container must not start.
        """
        for read in range(_CHECKPOINT_READS):
            checkpoint = self.observer.read_checkpoint()
            if checkpoint is None:
                reason = "the kubelet's checkpoint cannot be read"
                break
            found = self._owner(checkpoint, resource, ids)
            if found is not None:
                return found
            if read < _CHECKPOINT_READS - 1:
                self.pause(_PAUSE_S)
        else:
            reason = "the kubelet's checkpoint shows no container with exactly these devices"
        shown = self._find_shown(resource, ids)
        if shown is not None:
            self._check(shown, resource, ids)
        with self.state as state:
            holders = [shown.ref] if shown is not None else state.snapshot.find(resource, ids)
            for each in holders[:1]:
                state.note_unproven(each.pod)
            halves = find_halves(state.served, state.snapshot, resource, ids)
        for half in halves:
            check_together([self._grant(resource, ids), self._grant(resource.other, half)])
        self.decision_log.unproven(holders[0] if holders else None, ids, reason)
        return None

    def _find_shown(self, resource: Resource, ids: frozenset[str]) -> _Proof | None:
        """Return the container that ``List`` shows with these slots, if one, of a known pod."""
        found = self.observer.find_holders(resource, ids)
        with self.state as state:
            pods = [
                info
                for entry, _ in found
                for info in state.known.of_name(entry.key)
                if entry.may_be(info)
            ]
        if len(found) != 1 or len(pods) != 1:
            return None
        (_, shown), info = found[0], pods[0]
        ref = ContainerRef(info.id, shown.name)
        return _Proof(kubelet_uid(info), ref, info, {shown.name: shown.held})

    def _grant(self, resource: Resource, ids: frozenset[str]) -> Grant:
        return translate(resource, self.table.read(resource, sorted(ids)))

    def _owner(
        self, checkpoint: Checkpoint, resource: Resource, ids: frozenset[str]
    ) -> _Proof | None:
        """Return the container that holds these slots in *checkpoint*; correct wrong guesses.

        The entry of an ended pod may have the same slots (K29), and a late checkpoint those of a
        rejected pod (K33). So an assignment that was no guess takes precedence, and so does one
        with which ``List`` agrees.
        """
        holders, guessed, found = self._find_owners(checkpoint, resource, ids)
        if not found:
            return None
        unknown, ended, first = found[0]
        if (
            unknown
            and holders
            and (ended or not guessed or self._is_of_another(first, resource, ids))
        ):
            return None
        with self.state as state:
            corrections = state.correct(checkpoint)
        for each in corrections:
            self.decision_log.corrected(each)
        return first

    def _is_of_another(self, proof: _Proof, resource: Resource, ids: frozenset[str]) -> bool:
        """Return whether ``List`` shows *ids* with a pod of another name."""
        pod = proof.ref.pod
        shown = self.observer.find_holders(resource, ids) if pod.name else []
        return any(entry.key != pod.key for entry, _ in shown)

    def _find_owners(
        self, checkpoint: Checkpoint, resource: Resource, ids: frozenset[str]
    ) -> tuple[Sequence[ContainerRef], bool, Sequence[tuple[bool, bool, _Proof]]]:
        """Find who holds these slots.

        Returns:
            The containers that hold them by the last snapshot; whether that is a guess; and those
            that hold them in *checkpoint*, the likeliest first: whether it is another container
            than those, whether its pod has ended, and the container.
        """
        with self.state as state:
            served, snapshot = state.served, state.snapshot
            holders = snapshot.find(resource, ids)
            guessed = is_guessed(served, snapshot, resource, ids)
            found = []
            for owner in checkpoint.owners(resource, ids):
                uid, name = owner
                info = state.known.by_uid(uid)
                known = state.snapshot.pod_by_uid(uid)
                pod = info.id if info is not None else PodId("", "", uid)
                pod = pod if info is not None or known is None else known.id
                ref = ContainerRef(pod, name)
                # Of a holder that the API has not shown, only the name can be compared: its UID is
                # not known, or that of an ended pod whose entry has the same slots (K29). A guess
                # may have the wrong name.
                unshown = (
                    one
                    for one in holders
                    if state.known.find(one.pod) is None
                    and not has_guess(served, snapshot, one, resource, ids)
                )
                nameless = (one for one in unshown if one.container == name)
                may_be = (one for one in nameless if not pod.name or one.pod.key == pod.key)
                named = next(may_be, None)
                is_holder = ref in holders or named is not None
                proof = _Proof(uid, ref if pod.name else named or ref, info, checkpoint.pods[uid])
                found.append((not is_holder, state.has_ended(owner, resource, ids), proof))
        return holders, guessed, sorted(found, key=lambda each: each[:2])

    def _check(self, proof: _Proof, resource: Resource, ids: frozenset[str]) -> None:
        """Compare a container's slots with its request.

        Raises:
            GrantError: they contradict each other.
        """
        info, name = proof.info, proof.ref.container
        slots = proof.held[name]
        found = (grant_of(self.table, each, slots.get(each)) for each in Resource)
        grants = [each for each in found if each is not None]
        container = info.demand.of(name) if info is not None else None
        with self.state as state:
            for_another = state.was_chosen_for_another(ids, proof.ref)
        # The annotations of a running pod may have changed since its devices were chosen for it.
        by_annotations = info is not None and (not info.running or for_another)
        for grant in grants:
            if container is not None:
                check_request(container.demand, grant)
            check_parts(container.demand if container and by_annotations else None, grant)
        if container is not None:
            self._check_complete(proof, container)
        check_together(grants)
        if info is not None and by_annotations:
            self._check_wishes(resource, ids, info, name)

    def _publish(self, proof: _Proof, resource: Resource) -> None:
        """Note the proof, and write the pod's allocation again if it was a guess."""
        info, name = proof.info, proof.ref.container
        with self.state as state:
            state.prove(proof.uid, name, resource)
            written = info.annotated.get(name) if info is not None else None
            if written is None or written.evidence is Evidence.ORDER:
                self.publisher.publish(info)

    def _check_complete(self, proof: _Proof, container: ContainerDemand) -> None:
        """Veto a container for which the kubelet has skipped a resource (fact K11).

        The file may be older than the container's second resource (K30, K33). ``List`` shows
        whether it is, unless it does not show the container (K4). Then our own assignments and
        the file, read again, decide.

        Raises:
            GrantError: a resource is missing; the message names it.
        """
        for each in _lacking(container, proof.held[container.name]):
            listed = self.observer.find_listed(proof.ref)
            if each in _lacking(container, self._reread(proof, container, listed)):
                raise GrantError(
                    f"no {each.unit}, but the container requests "
                    f"{each.count_in(container.demand)}: the kubelet did not know the resource "
                    "when it admitted the pod; delete the pod, and its successor gets both"
                )

    def _reread(
        self, proof: _Proof, container: ContainerDemand, listed: HeldSlots | None
    ) -> HeldSlots:
        """Return a container's slots as *listed*, as assigned, or as the checkpoint has in 1 s."""
        if listed is not None:
            return listed
        with self.state as state:
            slots = state.snapshot.containers(proof.ref.pod).get(container.name, {})
        for _ in range(_CHECKPOINT_READS if _lacking(container, slots) else 0):
            self.pause(_PAUSE_S)
            checkpoint = self.observer.read_checkpoint()
            if checkpoint is not None:
                slots = checkpoint.pods.get(proof.uid, {}).get(container.name, {})
            if not _lacking(container, slots):
                break
        return slots

    def _check_wishes(
        self, resource: Resource, ids: frozenset[str], info: PodInfo, name: str
    ) -> None:
        """Veto a container whose cards contradict the wishes of its pod's author.

        The wishes were not known when the cards were chosen: neither watch nor API had shown the
        pod.

        Raises:
            GrantError: they contradict; the message names the cards and the annotations.
        """
        inventory = self.table.inventory
        if info.wishes == NO_WISHES and not self.table.has_instances:
            return
        ruled_out = []
        container = info.demand.of(name)
        shares = container is None or may_get_instances(container.demand)
        cards, link = translate(resource, self.table.read(resource, ids)).cards, info.wishes.link
        if not Links(inventory).fulfils(inventory.positions(cards), link):
            ruled_out.append(f"{', '.join(cards)} by gpu-link ({link})")
        for card in cards:
            found = self.table.inventory.card(card)
            if found is None:
                continue
            if key := info.wishes.excludes(model=found.model, uuid=found.uuid):
                ruled_out.append(f"{card} by {key}")
            elif is_for_shares(found, info.wishes) and not shares:
                ruled_out.append(f"{card}, a MIG instance that they do not name")
        if ruled_out:
            raise GrantError(
                f"cards that the pod's annotations rule out: {', '.join(ruled_out)}; the pod was "
                "not known when they were chosen: delete it, and its successor is placed again"
            )

    def _start(self, proof: _Proof | None, ids: frozenset[str]) -> None:
        """Prepare enforcement for the proven container, or for the one that holds these slots.

        Raises:
            EnforcementError: its files cannot be made.
        """
        if proof is not None:
            pod, info, held = proof.ref.pod, proof.info, proof.held
        else:
            with self.state as state:
                holders = state.snapshot.find(Resource.CORE, ids)
                pod = holders[0].pod if holders else UNKNOWN.pod
                info, held = state.known.find(pod), state.snapshot.containers(pod)
        found = starting(pod, info, held, ids, self.table)
        unknown = () if found else (holding_of(UNKNOWN, {Resource.CORE: ids}, self.table, None),)
        self.enforcement.start(found or unknown)


def _lacking(container: ContainerDemand, slots: HeldSlots) -> list[Resource]:
    """Return the requested resources of which a container has no slot."""
    return [each for each in Resource if each.count_in(container.demand) and not slots.get(each)]
