"""Placing on the snapshot: from what the kubelet offers and what is held, to device IDs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from agent.allocator.search_input import PlacementRequest, SearchInput
from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from agent.errors import PlacementError
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.inventory import Amounts
from contract.resource import Resource, count_of
from placement.errors import NoPlacement
from placement.search import ContainerStep, Plan, make_plan
from placement.topology import Links


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container is placed.

    Attributes:
        cards: its cards, by index.
        slots: its places of the resource asked for.
        plan: the places meant for its pod's containers from here on.
        replaced: the cards that a scheduler chose, where others were taken.
    """

    cards: tuple[str, ...]
    slots: list[Slot]
    plan: Plan
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placer:
    """Places containers on the cards of one node.

    Attributes:
        table: the node's device IDs.
        links: how the node's cards are connected.
        unhealthy: why a card, by UUID, may not be given out; empty when it may.
    """

    table: DeviceTable
    links: Links
    unhealthy: Callable[[str], str]

    def place(self, request: PlacementRequest, snapshot: AllocationSnapshot) -> Placement:
        """Choose cards and places for one container.

        Args:
            request: the container, and what the kubelet offers.
            snapshot: who holds what.

        Raises:
            PlacementError: nothing fits; names the container that cannot be placed.
        """
        found = SearchInput(
            request,
            table=self.table,
            snapshot=snapshot,
            links=self.links,
            unhealthy=self.unhealthy,
        )
        container, resource = request.container, request.resource
        try:
            step = found.step(container)
            plan = found.planned(step) or self._plan(request, found, step)
        except NoPlacement as error:
            raise PlacementError(str(error)) from error
        cards = tuple(found.cards.names[at] for at in plan[container.name].cards)
        within = {card: self.table.among(resource, card, found.offered) for card in cards}
        slots = pick(container.demand, resource, cards, free=within, must=request.must)
        asked = {each for each in Resource if count_of(container.demand, each)}
        first = asked - {resource} <= step.lacking
        replaced = step.chosen if first and step.chosen and set(step.chosen) != {*cards} else ()
        return Placement(cards, slots, plan, replaced)

    def _plan(self, request: PlacementRequest, found: SearchInput, step: ContainerStep) -> Plan:
        """Make the first attempt that succeeds; refuse as the last guaranteed one did."""
        steps = [step, *_steps_after(request, found)]
        handing_on = any(each.container.kind is ContainerKind.INIT for each in steps)
        refusal: NoPlacement | None = None
        for together in (steps, steps[:1]):
            hinted = _hinted(together)
            for free, guaranteed in _attempts(request, found, together, handing_on=handing_on):
                for tried in (hinted, together) if hinted else (together,):
                    try:
                        plan = make_plan(
                            tried,
                            found.cards,
                            free,
                            reusable=found.reusable,
                            policy=request.policy,
                            guaranteed=guaranteed,
                        )
                    except NoPlacement as error:
                        refusal = error if guaranteed and tried is together else refusal
                        continue
                    if plan is not None:
                        names = [each.container.name for each in together]
                        return dict(zip(names, plan, strict=True))
                    if tried is together:
                        refusal = None  # given up, which says nothing
            if refusal is not None and (request.sole_candidate or len(steps) == 1):
                raise refusal
        raise refusal or NoPlacement("no place was found")


def _attempts(
    request: PlacementRequest,
    found: SearchInput,
    steps: Sequence[ContainerStep],
    *,
    handing_on: bool,
) -> Iterator[tuple[Sequence[Amounts], bool]]:
    """List what may be free for *steps*, under all assumptions and weaker ones; if it is sure.

    Where containers hand places on (K7), the plan should hold whichever the kubelet chooses; if
    there is none such, one that may hold will do.
    """
    tried: list[Sequence[Amounts]] = []
    for assumptions in request.assumptions.relaxed():
        free = found.free(assumptions, alone=len(steps) == 1)
        if free in tried:
            continue
        tried.append(free)
        for guaranteed in (True, False):
            if guaranteed or handing_on or any(map(any, found.reusable)):
                yield free, guaranteed


def _hinted(steps: Sequence[ContainerStep]) -> Sequence[ContainerStep]:
    """Insist on what a scheduler chose; nothing where that is no other than trying it first.

    One of which no scheduler has chosen the cards goes where those after it can have theirs.
    Init containers and sidecars have no hint. Placed first, as if nobody had one, they would take
    those after them along (K7), or away from their cards.
    """
    free = next((place for place, step in enumerate(steps) if not step.chosen), len(steps))
    if not any(step.chosen and not step.strict for step in steps[free:]):
        return ()
    return [replace(step, strict=bool(step.chosen)) for step in steps]


def _steps_after(request: PlacementRequest, found: SearchInput) -> list[ContainerStep]:
    """Return what is to be found for the containers after the one that is asking."""
    # By name: what it asks for may have been raised.
    names = [each.name for each in request.pod.containers]
    steps: list[ContainerStep] = []
    for each in request.pod.containers[names.index(request.container.name) + 1 :]:
        if found.lacking(each):
            try:
                steps.append(found.step(each))
            except NoPlacement as error:
                if request.sole_candidate:
                    raise NoPlacement(f"container {each.name}: {error}") from error
                break
    return steps


def at_least(container: ContainerDemand, table: DeviceTable) -> ContainerDemand:
    """Work out what a container must ask for of which only the memory is known.

    More memory than any card has is asked for with whole cards.
    """
    largest = max(
        (table.places(Resource.MEMORY, card) for card in table.inventory.cards), default=0
    )
    memory = container.demand.memory
    if memory <= largest or not container.demand.is_share or not largest:
        return container
    cores = CORES_PER_CARD * -(-memory // largest)
    return replace(container, demand=replace(container.demand, cores=cores))


def pick(
    demand: Demand,
    resource: Resource,
    cards: Sequence[str],
    *,
    free: Mapping[str, Iterable[Slot]],
    must: Sequence[Slot] = (),
) -> list[Slot]:
    """Choose the places on the chosen cards, lowest first.

    Args:
        demand: what the container asks for.
        resource: which resource is asked for.
        cards: the chosen cards, by index.
        free: places within reach, by card, ascending; they include *must*.
        must: places to be taken.

    Raises:
        PlacementError: the cards do not have enough places.
    """
    size = count_of(demand, resource)
    quota = dict(zip(cards, demand.per_card(resource), strict=True))
    chosen = list(must)
    taken = set(must)
    for card in cards:
        room = max(quota[card] - sum(slot.card == card for slot in must), 0)
        fresh = (slot for slot in free.get(card, ()) if slot not in taken)
        chosen += islice(fresh, room)
    chosen = chosen[:size] if len(must) <= size else list(must)
    if len(chosen) < size:
        raise PlacementError(
            f"{size} places of {resource} were asked for on {', '.join(cards)}, "
            f"{len(chosen)} are free there"
        )
    return chosen
