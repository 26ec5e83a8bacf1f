"""Prepares and forgets claims, and knows what they hold of each card."""

import logging
import threading
from collections.abc import Callable, Mapping

from agent.allocator.slots import DeviceTable
from agent.dra.claims import (
    ClaimAllocation,
    ClaimRef,
    ClaimShare,
    allocations_by,
    check_pod,
    check_room,
    has_room,
    holdings_of,
    read_claim,
    served_by_plugin,
)
from agent.dra.specs import ClaimSpecs
from agent.errors import ClaimError, EnforcementError, Refusal, Unavailable
from agent.holdings.core import NodeCore
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings
from agent.holdings.interfaces import AnnotationWriter, Enforcer
from agent.kubernetes_api.client import Api, Json
from agent.kubernetes_api.pods import PodCache
from agent.kubernetes_api.watched_objects import WatchedObjects
from contract.allocation import Allocation
from contract.devices import device_name
from placement.pods import PodInfo

log = logging.getLogger(__name__)


class ClaimDriver(NodeCore):
    """The prepared claims of a node, first those of an earlier agent.

    Safe to share between threads.

    Attributes:
        driver: the driver's name.
        pool: the name of the node's pool of devices.
    """

    def __init__(  # noqa: PLR0913 -- its surroundings, by keyword
        self,
        *,
        table: DeviceTable,
        driver: str,
        pool: str,
        claims: WatchedObjects,
        api: Api,
        pods: PodCache,
        specs: ClaimSpecs,
        inject: Callable[[Holding], ContainerEdits],
        enforcer: Enforcer,
        writer: AnnotationWriter,
        unhealthy: Callable[[str], str],
        on_prepared: Callable[[], None] = lambda: None,
        on_refusal: Callable[[ContainerRef, str], None] = lambda _ref, _reason: None,
        ending: float = 20.0,
    ) -> None:
        """Read the claims of an earlier agent.

        *claims* are those with a card of this node; *api* is asked for one that the watch does not
        show yet. *inject* returns the container edits of a holding, *unhealthy* the fault of a card
        by UUID, empty without one. *on_prepared* is called for each prepared claim, *on_refusal*
        for each refused one whose pod is known, with the reason. A claim waits *ending* seconds for
        others that have ended.

        Raises:
            EnforcementError: the specs cannot be read.
        """
        super().__init__(pods=pods, writer=writer, enforcer=enforcer, inject=inject)
        self.driver = driver
        self.pool = pool
        self._inventory, self._block = table.inventory, table.block
        self._cards = {device_name(card): card for card in self._inventory.cards}
        self._sizes = {card.uuid: card.size(table.block) for card in self._inventory.cards}
        self._watched = claims
        self._api = api
        self._cache = pods
        self._specs = specs
        self._unhealthy = unhealthy
        self._on_prepared = on_prepared
        self._on_refusal = on_refusal
        self._ending = ending
        self._lock = threading.Condition()  # held while a claim is prepared or forgotten
        self._claims: Mapping[str, ClaimAllocation] = specs.load()  # the prepared ones, by UID
        # Claims of an earlier agent that were not looked for in the API yet.
        self._unconfirmed = [each.ref for each in self._claims.values()]
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
            found = self._find_pod(claim.pod.uid) or self._cache.fetch(*claim.pod.key)
            info = check_pod(claim, found)
            with self._lock:
                self._lock.wait_for(lambda: not self._waits(claim), self._ending)
                if not is_wanted():
                    raise Unavailable(f"{ref}: the call was cancelled")
                devices = self._prepare(claim, info)
        except (Refusal, Unavailable) as error:
            log.warning("claim refused", extra={"claim": str(ref), "reason": str(error)})
            if claim is not None and isinstance(error, Refusal):
                self._on_refusal(ContainerRef(claim.pod, claim.shares[0].request), str(error))
            raise
        log.info("claim prepared", extra={"claim": str(ref), "pod": str(claim.pod)})
        self._on_prepared()
        self.catch_up(info)
        return devices

    def unprepare(self, ref: ClaimRef) -> None:
        """Remove the CDI spec of a claim, and forget it.

        Raises:
            Refusal: the spec cannot be removed: the kubelet asks again later.
        """
        with self._lock:
            self._specs.remove(ref)
            self._released |= ref.uid in self._claims
            self._claims = {uid: each for uid, each in self._claims.items() if uid != ref.uid}
            self._lock.notify_all()
        log.info("claim forgotten", extra={"claim": str(ref)})

    def _prepare(self, claim: ClaimAllocation, info: PodInfo) -> dict[ClaimShare, tuple[str, ...]]:
        """Check the sums, make the files, then write the spec; the lock is held."""
        uid = claim.ref.uid
        if self._claims.get(uid) != claim:
            for card in claim.by_card:
                if fault := self._unhealthy(card):
                    raise ClaimError(
                        f"{claim.ref}: card {card} is unhealthy ({fault}), and gets no new "
                        "container: delete the pod, so that another card is chosen"
                    )
            check_room(claim, self._others(claim), self._sizes)
        found = {each.ref.container: each for each in holdings_of(claim, info)}
        made = [found[request] for request in claim.by_request]
        with self._enforcement.preparing(*made) as edits:
            for each in made:
                self._enforcement.start([each])
            names = self._specs.write(claim, dict(zip(claim.by_request, edits, strict=True)))
            self._claims = {**self._claims, uid: claim}
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
        if self._claims.get(claim.ref.uid) == claim:
            return False
        current = {each["metadata"]["uid"] for each in self._watched.objects.values()}
        others = self._others(claim)
        left = [
            each for each in others if each.ref.uid in current or each.ref.uid not in self._claims
        ]
        return has_room(claim, left, self._sizes) and not has_room(claim, others, self._sizes)

    # --- after a restart, and between calls ---------------------------------------------

    def may_have_changed(self) -> bool:
        """Return whether a claim was forgotten since :meth:`refresh` last looked."""
        return self._released

    def observe(self) -> None:
        """Forget the claims of an earlier agent that have ended."""
        self._drop_deleted()

    def _take_released(self) -> bool:
        """Return whether a claim was forgotten since the last time."""
        with self._lock:
            released, self._released = self._released, False
        return released

    def _find_allocations(self, info: PodInfo) -> dict[str, Allocation]:
        """Return the allocations of a pod by its claims."""
        claims = [each for each in self._claims.values() if each.pod.uid == info.id.uid]
        return allocations_by(claims, info)

    def _drop_deleted(self) -> None:
        """Forget the claims of an earlier agent that are deleted, or not allocated any more.

        Only those: a claim that is deleted later may be of a pod that was force-deleted and still
        runs, and the kubelet calls ``NodeUnprepareResources`` for it.
        """
        if not self._watched.synced.is_set():
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
        return not self._unconfirmed and self._watched.synced.is_set()

    def claimed_pods(self) -> set[str]:
        """Return the UIDs of the pods with a claim that is prepared, or allocated on this node."""
        return {each.pod.uid for each in self._claims.values()} | {
            user["uid"]
            for claim in self._watched.objects.values()
            for user in claim["status"].get("reservedFor") or ()
        }

    def faults(self) -> dict[str, str]:
        """Return the fault of each device, empty without one."""
        return {device: self._unhealthy(card.uuid) for device, card in self._cards.items()}

    # --- who holds what ----------------------------------------------------------------

    def _occupying(self) -> list[ClaimAllocation]:
        """Return the prepared claims, and what pods hold that a device plugin has served."""
        claimed = self.claimed_pods()
        others = (
            served_by_plugin(each) for each in self._pods.pods() if each.id.uid not in claimed
        )
        return [*self._claims.values(), *(each for each in others if each is not None)]

    def _others(self, claim: ClaimAllocation) -> list[ClaimAllocation]:
        return [each for each in self._occupying() if each.ref.uid != claim.ref.uid]

    def holdings(self) -> NodeHoldings:
        """Return what the containers of prepared claims hold, and those of the device plugin."""
        infos = {each.id.uid: each for each in self._pods.pods()}
        found = (
            each
            for claim in self._occupying()
            for each in holdings_of(claim, infos.get(claim.pod.uid))
        )
        return NodeHoldings.of(found, self._inventory.cards, self._block)

    def _find_claim(self, ref: ClaimRef) -> Json | None:
        """Return a claim; ``None`` if there is none with this UID.

        Raises:
            Unavailable: the API server does not respond.
        """
        found = self._watched.objects.get((ref.namespace, ref.name))
        if found is None or found["metadata"]["uid"] != ref.uid:
            found = self._api.get_claim(ref.namespace, ref.name)
        return found if found is not None and found["metadata"]["uid"] == ref.uid else None

    def _find_pod(self, uid: str) -> PodInfo | None:
        return next((each for each in self._pods.pods() if each.id.uid == uid), None)
