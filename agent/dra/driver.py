"""Prepares and forgets claims, and knows what they hold of each card."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.allocator.grants import (
    CardGrant,
    ContainerEdits,
    Entitlement,
    Grant,
    needs_annotation,
)
from agent.allocator.interfaces import AnnotationWriter, ContainerRef
from agent.allocator.outcomes import Enforcer
from agent.allocator.slots import DeviceTable
from agent.dra.claims import (
    ClaimAllocation,
    ClaimRef,
    ClaimShare,
    allocations_by,
    check_pod,
    check_room,
    has_room,
    read_claim,
    served_by_plugin,
)
from agent.dra.specs import ClaimSpecs
from agent.errors import ClaimError, EnforcementError, Refusal, Unavailable
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from agent.usage.holdings import CardHolder, Holdings, count_totals, held_share
from contract.claims import request_names
from contract.devices import device_name
from contract.resource import RESOURCES, Resource, count_of
from placement.pods import PodInfo

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class ClaimDriver:
    """The prepared claims of a node, first those of an earlier agent.

    Safe to share between threads. The constructor raises ``EnforcementError`` if the specs cannot
    be read.

    Attributes:
        table: the node's cards.
        driver: the driver's name.
        pool: the name of the node's pool of devices.
        claims: the claims with a card of this node.
        api: the API server, for a claim that the watch does not show yet.
        pods: the pods of this node.
        specs: the CDI specs.
        inject: returns the container edits of a grant.
        enforcer: enforces the limits of containers, and adds container edits.
        writer: writes allocations to pods.
        unhealthy: returns the fault of a card by UUID, empty without one.
        on_prepared: called for each prepared claim.
        on_refusal: called for each refused claim whose pod is known, with the reason.
        ending: seconds that a claim waits for others that have ended.
    """

    table: DeviceTable
    driver: str
    pool: str
    claims: WatchedObjects
    api: Api
    pods: PodCache
    specs: ClaimSpecs
    inject: Callable[[Grant], ContainerEdits]
    enforcer: Enforcer
    writer: AnnotationWriter
    unhealthy: Callable[[str], str]
    on_prepared: Callable[[], None] = lambda: None
    on_refusal: Callable[[ContainerRef, str], None] = lambda _ref, _reason: None
    ending: float = 20.0

    def __post_init__(self) -> None:
        """Read the claims of an earlier agent."""
        cards = self.table.inventory.cards
        self._cards = {device_name(card): card for card in cards}
        self._sizes = {card.uuid: card.size(self.table.block) for card in cards}
        self._lock = threading.Condition()  # held while files are made or removed
        self._held: Mapping[str, ClaimAllocation] = self.specs.load()
        # Claims of an earlier agent that were not looked for in the API yet.
        self._unconfirmed = [each.ref for each in self._held.values()]
        self._released = False

    # --- the kubelet's calls -----------------------------------------------------------

    def prepare(
        self, ref: ClaimRef, is_wanted: Callable[[], bool] = lambda: True
    ) -> dict[ClaimShare, tuple[str, ...]]:
        """Write the CDI spec of a claim, also of one that is prepared already.

        Returns the CDI names of each share, which the containers with its request get.

        *is_wanted* returns whether the kubelet still waits. It cancels the call for a pod that is
        deleted meanwhile, and calls ``NodeUnprepareResources``: nothing is prepared after that.

        Raises:
            Refusal: it cannot be served: the kubelet asks again later.
            Unavailable: the API server does not respond, or the call is cancelled.
        """
        claim = None
        try:
            obj = self._find_claim(ref)
            if obj is None:
                raise ClaimError(f"{ref}: Not found: it was deleted, or deleted and created again")
            claim = read_claim(obj, ref, driver=self.driver, cards=self._cards, pool=self.pool)
            found = self._find_pod(claim.pod.uid) or self.pods.fetch(*claim.pod.key)
            info = check_pod(claim, found)
            with self._lock:
                self._lock.wait_for(lambda: not self._waits(claim), self.ending)
                if not is_wanted():
                    raise Unavailable(f"{ref}: the call was cancelled")
                devices = self._prepare(claim, info)
        except (Refusal, Unavailable) as error:
            log.warning("claim refused", extra={"claim": str(ref), "reason": str(error)})
            if claim is not None and isinstance(error, Refusal):
                self.on_refusal(ContainerRef(claim.pod, claim.shares[0].request), str(error))
            raise
        log.info("claim prepared", extra={"claim": str(ref), "pod": str(claim.pod)})
        self.on_prepared()
        self.catch_up(info)
        return devices

    def unprepare(self, ref: ClaimRef) -> None:
        """Remove the CDI spec of a claim, and forget it.

        Raises:
            Refusal: the spec cannot be removed: the kubelet asks again later.
        """
        with self._lock:
            self.specs.remove(ref)
            self._released |= ref.uid in self._held
            self._held = {uid: each for uid, each in self._held.items() if uid != ref.uid}
            self._lock.notify_all()
        log.info("claim forgotten", extra={"claim": str(ref)})

    def _prepare(self, claim: ClaimAllocation, info: PodInfo) -> dict[ClaimShare, tuple[str, ...]]:
        """Check the sums, make the files, then write the spec; the lock is held."""
        uid = claim.ref.uid
        if self._held.get(uid) != claim:
            for card in claim.by_card:
                if fault := self.unhealthy(card):
                    raise ClaimError(
                        f"{claim.ref}: card {card} is unhealthy ({fault}), and gets no new "
                        "container: delete the pod, so that another card is chosen"
                    )
            check_room(claim, self._others(claim), self._sizes)
        edits = {
            request: self._edits(claim, request, shares, info)
            for request, shares in claim.by_request.items()
        }
        names = self.specs.write(claim, edits)
        self._held = {**self._held, uid: claim}
        # All cards of a request have one CDI device: the variables of a second one would replace
        # its own.
        return {
            share: () if at else names[request]
            for request, shares in claim.by_request.items()
            for at, share in enumerate(shares)
        }

    def _waits(self, claim: ClaimAllocation) -> bool:
        """Return whether a claim has room once those are unprepared that have ended.

        The claim of a pod that was deleted by force is gone before its containers. A refusal would
        cost up to 90 s.
        """
        if self._held.get(claim.ref.uid) == claim:
            return False
        current = {each["metadata"]["uid"] for each in self.claims.objects.values()}
        others = self._others(claim)
        left = [
            each for each in others if each.ref.uid in current or each.ref.uid not in self._held
        ]
        return has_room(claim, left, self._sizes) and not has_room(claim, others, self._sizes)

    def _edits(
        self, claim: ClaimAllocation, request: str, shares: Sequence[ClaimShare], info: PodInfo
    ) -> ContainerEdits:
        about = _entitlement(claim, ContainerRef(claim.pod, request), shares, info)
        edits = self.inject(about.cores)
        for grant in (about.cores, about.memory):
            if grant is not None:
                edits = edits.merged_with(
                    self.enforcer.prepare_allocation(about.ref, about.core_ids, grant)
                )
        self.enforcer.prepare_start(about.core_ids, about)
        return edits

    # --- after a restart, and between calls ---------------------------------------------

    def refresh(self, *, thorough: bool = True) -> bool:
        """Write missing annotations; return whether a claim has ended since the last call."""
        if thorough:
            self._drop_deleted()
            for info in self.pods.pods():
                self.catch_up(info)
        with self._lock:
            released, self._released = self._released, False
        return released

    def catch_up(self, info: PodInfo) -> None:
        """Write the allocation annotation of a pod if it is missing or out of date."""
        claims = [each for each in self._held.values() if each.pod.uid == info.id.uid]
        found = allocations_by(claims, info)
        if found and not info.terminal and needs_annotation(found, info.annotated):
            self.writer.put(info, found)

    def sweep(self) -> None:
        """Remove the files of enforcement of pods that hold nothing."""
        with self._lock:
            self.enforcer.prune({each.pod for each in self._holders()})

    def _drop_deleted(self) -> None:
        """Forget the claims of an earlier agent that are deleted, or not allocated any more.

        Only those: a claim that is deleted later may be of a pod that was force-deleted and still
        runs, and the kubelet calls ``NodeUnprepareResources`` for it.
        """
        if not self.claims.synced.is_set():
            return
        while self._unconfirmed:
            ref = self._unconfirmed[-1]
            try:
                found = self._find_claim(ref)
                if found is None or not (found.get("status") or {}).get("allocation"):
                    self.unprepare(ref)
            except (Unavailable, EnforcementError) as error:
                log.warning("claim not removed", extra={"claim": str(ref), "reason": str(error)})
                return
            self._unconfirmed.pop()

    @property
    def confirmed(self) -> bool:
        """Whether the API has all claims that an earlier agent had prepared."""
        return not self._unconfirmed and self.claims.synced.is_set()

    def claimed_pods(self) -> set[str]:
        """Return the UIDs of the pods with a claim that is prepared, or allocated on this node."""
        return {each.pod.uid for each in self._held.values()} | {
            user["uid"]
            for claim in self.claims.objects.values()
            for user in claim["status"].get("reservedFor") or ()
        }

    def faults(self) -> dict[str, str]:
        """Return the fault of each device, empty without one."""
        return {device: self.unhealthy(card.uuid) for device, card in self._cards.items()}

    # --- who holds what ----------------------------------------------------------------

    def _holders(self) -> list[ClaimAllocation]:
        """Return the prepared claims, and what pods hold that a device plugin has served."""
        claimed = self.claimed_pods()
        others = (served_by_plugin(each) for each in self.pods.pods() if each.id.uid not in claimed)
        return [*self._held.values(), *(each for each in others if each is not None)]

    def _others(self, claim: ClaimAllocation) -> list[ClaimAllocation]:
        return [each for each in self._holders() if each.ref.uid != claim.ref.uid]

    def entitled(self, runtime_uid: str, container: str) -> Entitlement | None:
        """Return the entitlement of a running container; ``None`` if it holds nothing here."""
        info = self._find_pod(runtime_uid)
        request = request_names(info.demand).get(container) if info is not None else None
        for claim in self._held.values():
            shares = claim.by_request.get(request or "")
            if info is not None and shares and claim.pod.uid == runtime_uid:
                return _entitlement(claim, ContainerRef(claim.pod, container), shares, info)
        return None

    def free(self, resource: Resource) -> dict[str, int]:
        """Count what is free of each card; of one that is held whole nothing is."""
        free = {card: count_of(size, resource) for card, size in self._sizes.items()}
        for claim in self._holders():
            for share in claim.shares:
                if share.card in free:  # else the card has gone
                    left = free[share.card] - count_of(share.amounts, resource)
                    free[share.card] = 0 if share.is_whole else max(left, 0)
        return free

    def holdings(self) -> Holdings:
        """Return what the containers of prepared claims hold; each request is one container."""
        card_of, block = self.table.inventory.card, self.table.block
        holders = [
            CardHolder(
                ContainerRef(claim.pod, request),
                claim.pod.uid,
                {each.card: held_share(card_of(each.card), each.amounts, block) for each in shares},
                info.wishes.core_limit if info is not None else None,
            )
            for claim in self._holders()
            for info in (self._find_pod(claim.pod.uid),)
            for request, shares in claim.by_request.items()
        ]
        totals = count_totals({each: self.free(each) for each in Resource}, self.table)
        return Holdings(tuple(sorted(holders, key=lambda each: each.ref)), totals)

    def _find_claim(self, ref: ClaimRef) -> Json | None:
        """Return a claim; ``None`` if there is none with this UID.

        Raises:
            Unavailable: the API server does not respond.
        """
        found = self.claims.objects.get((ref.namespace, ref.name))
        if found is None or found["metadata"]["uid"] != ref.uid:
            found = self.api.get_claim(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None

    def _find_pod(self, uid: str) -> PodInfo | None:
        return next((each for each in self.pods.pods() if each.id.uid == uid), None)


def _entitlement(
    claim: ClaimAllocation, ref: ContainerRef, shares: Sequence[ClaimShare], info: PodInfo
) -> Entitlement:
    """Return the limits of a container with a request; its core slots are those of the claim."""
    key = f"{claim.ref.uid}/{shares[0].request}"
    ids = frozenset(f"{each.card}::{key}/{n}" for each in shares for n in range(each.amounts.cores))
    cores, memory = (
        Grant(each, tuple(CardGrant(share.card, count_of(share.amounts, each)) for share in shares))
        for each in RESOURCES
    )
    limited = None if all(each.is_whole for each in shares) else memory
    return Entitlement(ref, ids, cores, limited, info.wishes.core_limit, claim.pod.uid)
