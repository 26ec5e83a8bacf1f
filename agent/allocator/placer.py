"""Placement: chooses slots among those that the kubelet offers, by the snapshot."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from agent.allocator.search_input import PlacementRequest, SearchInput
from agent.allocator.slots import DeviceTable, Slot
from agent.allocator.snapshot import AllocationSnapshot
from agent.errors import PlacementError
from contract.demand import CORES_PER_CARD, ContainerDemand, ContainerKind, Demand
from contract.inventory import Amounts
from contract.resource import Resource
from placement.errors import NoPlacement
from placement.search import ContainerStep, Plan, make_plan
from placement.topology import Links


@dataclass(frozen=True, slots=True)
class Placement:
    """The result of a placement.

    Attributes:
        cards: the container's cards, by index.
        slots: its slots of the requested resource.
        plan: the cards planned for this and the later containers of the pod.
        replaced: the cards that a scheduler chose, if others were taken.
    """

    cards: tuple[str, ...]
    slots: list[Slot]
    plan: Plan
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placer:
    """Places containers on the cards of one node.

    Attributes:
        withheld: returns why a card, by UUID, gets no new container; empty if it does.
    """

    table: DeviceTable
    links: Links
    withheld: Callable[[str], str]

    def place(self, request: PlacementRequest, snapshot: AllocationSnapshot) -> Placement:
        """Choose cards and slots for one container.

        Raises:
            PlacementError: nothing fits; the message names the container that cannot be placed.
        """
        found = SearchInput(
            request, table=self.table, snapshot=snapshot, links=self.links, withheld=self.withheld
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
        wanted = {each for each in Resource if each.count_in(container.demand)}
        first = wanted - {resource} <= step.lacking
        replaced = step.chosen if first and step.chosen and set(step.chosen) != {*cards} else ()
        return Placement(cards, slots, plan, replaced)

    def _plan(self, request: PlacementRequest, found: SearchInput, step: ContainerStep) -> Plan:
        """Return the first plan that succeeds; else raise the error of the last guaranteed one."""
        steps = [step, *_steps_after(request, found)]
        reuses = any(each.container.kind is ContainerKind.INIT for each in steps)
        refusal: NoPlacement | None = None
        for together in (steps, steps[:1]):
            hinted = _hinted(together)
            for free, guaranteed in _attempts(request, found, reuses=reuses):
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
                        refusal = None  # the search was abandoned: its result is not known
            if refusal is not None and (request.sole_candidate or len(steps) == 1):
                raise refusal
        raise refusal or NoPlacement("no placement was found")


def _attempts(
    request: PlacementRequest, found: SearchInput, *, reuses: bool
) -> Iterator[tuple[Sequence[Amounts], bool]]:
    """Yield the free amounts to try, and whether the plan must be guaranteed.

    The strictest assumptions come first. If containers reuse slots (K7), the plan should hold
    whichever slots the kubelet chooses; if there is no such plan, one that may hold is accepted.
    """
    tried: list[Sequence[Amounts]] = []
    for assumptions in request.assumptions.relaxed():
        free = found.free(assumptions)
        if free in tried:
            continue
        tried.append(free)
        for guaranteed in (True, False):
            if guaranteed or reuses or any(map(any, found.reusable)):
                yield free, guaranteed


def _hinted(steps: Sequence[ContainerStep]) -> Sequence[ContainerStep]:
    """Return *steps* with the scheduler's choices made strict; empty if that changes nothing.

    Init containers and sidecars may have no chosen cards. If they were placed first without regard
    to later choices, later containers would follow them (K7), or lose their chosen cards. So such a
    container is placed where the later ones can have their cards.
    """
    first = next((position for position, step in enumerate(steps) if not step.chosen), len(steps))
    if not any(step.chosen and not step.strict for step in steps[first:]):
        return ()
    return [replace(step, strict=bool(step.chosen)) for step in steps]


def _steps_after(request: PlacementRequest, found: SearchInput) -> list[ContainerStep]:
    """Return the steps of the search for the containers after the target."""
    # Compare names: the target's request may have been raised.
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
    """Return the smallest request of a container of which only the memory is known.

    More memory than any card has needs whole cards.
    """
    largest = max(
        (table.slot_count(Resource.MEMORY, card) for card in table.inventory.cards), default=0
    )
    demand = container.demand
    memory = demand.memory
    if demand.most_per_card(Resource.MEMORY) <= largest or not demand.is_share or not largest:
        return container
    cores = CORES_PER_CARD * -(-memory // largest)
    return replace(container, demand=Demand(cores, memory))


def pick(
    demand: Demand,
    resource: Resource,
    cards: Sequence[str],
    *,
    free: Mapping[str, Iterable[Slot]],
    must: Sequence[Slot] = (),
) -> list[Slot]:
    """Choose slots on the chosen cards, lowest numbers first.

    *free* has the available slots by card, ascending; they include *must*, the slots that must be
    taken.

    Raises:
        PlacementError: the cards do not have enough slots.
    """
    size = resource.count_in(demand)
    quota = dict(zip(cards, demand.per_card(resource), strict=True))
    chosen = list(must)
    taken = set(must)
    for card in cards:
        count = max(quota[card] - sum(slot.card == card for slot in must), 0)
        unused = (slot for slot in free.get(card, ()) if slot not in taken)
        chosen += islice(unused, count)
    chosen = chosen[:size] if len(must) <= size else list(must)
    if len(chosen) < size:
        raise PlacementError(
            f"{resource.format_count(size)} requested on {', '.join(cards)}, "
            f"but only {len(chosen)} free there"
        )
    return chosen
