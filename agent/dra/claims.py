"""Claims as plain data: what one allocates of which card, and what it says of its pod. Pure.

A ResourceClaim's ``status.allocation`` has one result for each device of a request; its
``consumedCapacity`` is the share of that device. Claims may be written by anybody, so a claim is
served only for the containers whose own limits it matches: quotas count the limits.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from agent.errors import ClaimError
from agent.holdings.annotation import allocation_of
from agent.holdings.holding import ContainerRef, Holding, are_whole, make_key
from contract.allocation import Allocation, Evidence
from contract.claims import request_names
from contract.devices import CORES, MEMORY
from contract.errors import quote
from contract.inventory import NOTHING, Amounts, Card
from contract.quantity import parse_quantity
from contract.resource import RESOURCES, Resource
from contract.reusable import held_on_cards
from placement.pods import PodId, PodInfo


class ClaimRef(NamedTuple):
    """The identity of a claim."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        """Return ``claim namespace/name``."""
        return f"claim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClaimShare:
    """One result of a claim's allocation.

    Attributes:
        request: the name of the claim's request, which is that of its container.
        device: the device's name in the ResourceSlice.
        card: the card's UUID.
        amounts: the share of it; all its cores are the whole card.
        share_id: the API's ID of the share.
    """

    request: str
    device: str
    card: str
    amounts: Amounts
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What a claim allocates on this node, for which pod; shares by request and card index."""

    ref: ClaimRef
    pod: PodId
    shares: tuple[ClaimShare, ...]

    @property
    def by_request(self) -> Mapping[str, tuple[ClaimShare, ...]]:
        """The shares of each request."""
        grouped = groupby(self.shares, key=lambda each: each.request)
        return {request: tuple(shares) for request, shares in grouped}

    @property
    def by_card(self) -> Mapping[str, Amounts]:
        """The sum on each card."""
        found: dict[str, Amounts] = {}
        for each in self.shares:
            found[each.card] = found.get(each.card, NOTHING).plus(each.amounts)
        return found


def is_allocated(claim: Mapping[str, Any], driver: str, pool: str) -> bool:
    """Return whether a claim has a device of this node."""
    return bool(_results(claim, driver, pool))


def read_claim(
    claim: Mapping[str, Any], ref: ClaimRef, *, driver: str, cards: Mapping[str, Card], pool: str
) -> ClaimAllocation:
    """Read the claim that the kubelet names by *ref*; *cards* are this node's, by device name.

    Raises:
        ClaimError: it is not allocated to a pod and to cards of this node.
    """
    results = _results(claim, driver, pool)
    if not results:
        raise ClaimError(
            f"{ref}: status.allocation.devices.results: Required value: a device of driver "
            f"{driver} and pool {pool}"
        )
    shares = [_share(f"{ref}: {path}", result, cards) for path, result in results]
    shares.sort(key=lambda each: (each.request, cards[each.device].index))
    if len({(each.request, each.device) for each in shares}) < len(shares):
        raise ClaimError(f"{ref}: a request has two shares of one card: their limits cannot be set")
    users = claim["status"].get("reservedFor") or []
    if [(user.get("resource"), user.get("apiGroup") or "") for user in users] != [("pods", "")]:
        names = quote(", ".join(user["name"] for user in users))
        # The limits of one pod are counted, and the kubelet asks only for the first.
        raise ClaimError(
            f"{ref}: status.reservedFor: Invalid value: {names}: must be one pod alone"
        )
    pod = PodId(ref.namespace, users[0]["name"], users[0]["uid"])
    return ClaimAllocation(ref, pod, tuple(shares))


def check_pod(claim: ClaimAllocation, info: PodInfo | None) -> PodInfo:
    """Check a claim against the limits of its pod's containers, and return the pod.

    Raises:
        ClaimError: there is no such pod, or a request is not what its container's limits say.
    """
    if info is None or info.terminal or info.id.uid != claim.pod.uid:
        raise ClaimError(f"{claim.ref}: pod {claim.pod} is not running on this node")
    for request, shares in claim.by_request.items():
        container = info.demand.of(request)
        if container is None:
            raise ClaimError(
                f"{claim.ref}: request {quote(request)}: must be the name of a container of pod "
                f"{claim.pod} that has GPU limits"
            )
        demand = container.demand
        each = Amounts(demand.cores_per_card, demand.most_per_card(Resource.MEMORY))
        found = [
            Amounts(share.amounts.cores, share.amounts.memory if demand.is_share else each.memory)
            for share in shares
        ]
        if len(found) != demand.cards or {*found} != {each}:
            text = ", ".join(
                f"{share.amounts.cores} cores and {share.amounts.memory} memory blocks of "
                f"{share.device}"
                for share in shares
            )
            raise ClaimError(
                f"{claim.ref}: request {quote(request)}: {text}, but the container's limits are "
                f"{demand.cards} x {each.cores} cores and {each.memory} memory blocks"
            )
    return info


def check_room(
    claim: ClaimAllocation, others: Iterable[ClaimAllocation], sizes: Mapping[str, Amounts]
) -> None:
    """Check that a claim and all others that are prepared fit on its cards.

    Raises:
        ClaimError: two schedulers gave the same share; it fits once the others have ended. Or a
            container has another claim.
    """
    others = tuple(others)
    for each in others:
        for request in sorted(claim.by_request.keys() & each.by_request.keys()):
            if each.pod == claim.pod:
                raise ClaimError(
                    f"{claim.ref}: request {quote(request)}: {each.ref} serves this container"
                )
    for card, wanted in claim.by_card.items():
        on_card = {each.ref: each.by_card[card] for each in others if card in each.by_card}
        for resource in RESOURCES:
            size, count = resource.count_in(sizes[card]), resource.count_in(wanted)
            held = sum(resource.count_in(each) for each in on_card.values())
            if held + count > size:
                names = ", ".join(sorted(f"{ref.namespace}/{ref.name}" for ref in on_card)[:3])
                room = f"{held} of {size} are held by {names}: it starts once they have ended"
                raise ClaimError(
                    f"{claim.ref}: {resource.format_count(count)} of card {card}, but "
                    f"{room if names else f'it has {size} now: delete the pod'}"
                )


def served_by_plugin(info: PodInfo) -> ClaimAllocation | None:
    """Return what a pod holds that a device plugin has served, as if by a claim of its name.

    The node was not drained before its agent got ``--mode dra``.
    """
    if info.terminal or any(each.evidence is Evidence.CLAIM for each in info.annotated.values()):
        return None
    cards = {name: each.cards for name, each in info.annotated.items()}
    held = held_on_cards(info.demand, cards).items()
    shares = tuple(ClaimShare(name, card, card, amounts) for (name, card), amounts in held)
    return ClaimAllocation(ClaimRef(*info.id), info.id, shares) if shares else None


def has_room(
    claim: ClaimAllocation, others: Iterable[ClaimAllocation], sizes: Mapping[str, Amounts]
) -> bool:
    """Return whether a claim and all others fit on its cards (:func:`check_room`)."""
    try:
        check_room(claim, others, sizes)
    except ClaimError:
        return False
    return True


def holdings_of(claim: ClaimAllocation, info: PodInfo | None) -> list[Holding]:
    """Return what each container of a pod holds by its claim.

    *info* is ``None`` while the API does not show the pod: each request is a container then.
    """
    shares = claim.by_request
    requests = {each: each for each in shares}
    if info is not None:
        of_pod = request_names(info.demand)
        requests = {each: by for each, by in of_pod.items() if by in shares} | requests
    found = []
    for container, request in requests.items():
        cards = {each.card: each.amounts for each in shares[request]}
        found.append(
            Holding(
                ContainerRef(claim.pod, container),
                make_key(f"{claim.ref.uid}/{request}"),
                cards,
                are_whole(cards),
                info.wishes.core_limit if info is not None else None,
                claim.pod.uid,
                superseded=container != request,
                processes=info.wishes.processes if info is not None else 1,
            )
        )
    return found


def allocations_by(claims: Iterable[ClaimAllocation], info: PodInfo) -> dict[str, Allocation]:
    """Return the allocation of each of a pod's containers that its claims serve."""
    found = (holding for claim in claims for holding in holdings_of(claim, info))
    return {
        name: allocation_of(each.cards, container.demand, Evidence.CLAIM)
        for each in found
        if (container := info.demand.of(name := each.ref.container)) is not None
    }


def _results(
    claim: Mapping[str, Any], driver: str, pool: str
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the results of this driver on this node, each with its path."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [
        (f"status.allocation.devices.results[{at}]", each)
        for at, each in enumerate(devices.get("results") or ())
        if (each.get("driver"), each.get("pool")) == (driver, pool)
    ]


def _share(path: str, result: Mapping[str, Any], cards: Mapping[str, Card]) -> ClaimShare:
    card = cards.get(result["device"])
    if card is None:
        raise ClaimError(
            f"{path}.device: Not found: {quote(result['device'])}: this node has no such card"
        )
    consumed = result.get("consumedCapacity") or {}
    amounts = []
    for name in (CORES, MEMORY):
        amount = parse_quantity(consumed.get(name))
        if amount is None or amount < 1 or amount != int(amount):
            raise ClaimError(
                f"{path}.consumedCapacity[{name}]: Invalid value: {quote(consumed.get(name))}: "
                "must be a whole number, 1 or more; without any, the cluster's feature gate "
                "DRAConsumableCapacity is off"
            )
        amounts.append(int(amount))
    share_id = result.get("shareID") or ""
    return ClaimShare(result["request"], result["device"], card.uuid, Amounts(*amounts), share_id)
