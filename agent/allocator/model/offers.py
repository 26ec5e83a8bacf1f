"""What the kubelet withholds: places that it does not offer and that nobody is known to hold.

A kubelet that has just restarted counts the devices of pods that ended meanwhile, until it knows
all pods (K11). A call tells what is offered of the resource that is asked for, and nothing of
the other one; that is concluded from what was offered of it last, and from what containers had
together. Pure.

The structure is not safe to share between threads: its owner locks.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from agent.allocator.model.ledger import ContainerRef, Ledger, Places
from agent.allocator.model.tickets import DeviceTable, card_of
from contract.resource import Resource

_MOST_ENDED = 64
_NOTHING: frozenset[str] = frozenset()

WithheldCounts = Mapping[Resource, Mapping[str, int]]
"""How many places are withheld, by card, by resource."""


class Offers:
    """Concludes from what the kubelet offered in each call what it withholds."""

    def __init__(self, table: DeviceTable, *, aligned: bool = False) -> None:
        """Start with a kubelet that offers whatever nobody holds.

        Args:
            table: the node's device IDs.
            aligned: whether the kubelet knows NUMA nodes, so that it may offer some nodes'
                places only (K23): what it does not offer of others it does not withhold.
        """
        self._table = table
        self._nodes = {card.uuid: card.numa for card in table.inventory.cards} if aligned else {}
        # Withheld in the last call that asked for the resource: neither offered nor held.
        self._withheld: dict[Resource, frozenset[str]] = {}
        # What the kubelet may have written into its checkpoint: the ledger as of the last
        # answer, and some containers that have ended before.
        self._checkpoint: dict[ContainerRef, Places] = {}
        # What a kubelet that has restarted may have read from that checkpoint and still count,
        # though the containers have ended.
        self._restored: dict[ContainerRef, Places] = {}
        # The ledger as of the last call, and what was answered since.
        self._previous: dict[ContainerRef, Places] = {}
        # What left the ledger and was not offered again since: not freed yet, perhaps.
        self._released: dict[ContainerRef, Places] = {}

    def registered(self, ledger: Ledger) -> None:
        """Apply that a kubelet has come anew.

        Its checkpoint is as old as the last container that got all it asked for. What was
        assigned then may have been released since, and is counted all the same.
        """
        self._withheld.clear()
        self._previous.clear()
        self._released.clear()
        self._restored = {**self._checkpoint, **ledger.places()}

    def answered(self, ledger: Ledger) -> None:
        """Apply that a call was answered, after which a checkpoint may be written."""
        current = ledger.places()
        self._previous |= current
        left = set(self._checkpoint).difference(current)  # nearly always none of hundreds
        ended = [ref for ref in self._checkpoint if ref in left] if left else []
        recent = ended[-_MOST_ENDED:]
        self._checkpoint = {**{ref: self._checkpoint[ref] for ref in recent}, **current}

    def offered(
        self,
        resource: Resource,
        offered: AbstractSet[str],
        ledger: Ledger,
        unhealthy: Callable[[str], str],
    ) -> None:
        """Apply what is offered in a call.

        Args:
            resource: what is asked for.
            offered: the IDs offered.
            ledger: who holds what, brought in line with ``List``.
            unhealthy: why a card, by UUID, is not given out: it is not offered either.
        """
        self._note_released(resource, offered, ledger)
        known, held = self._table.cards(resource), ledger.held(resource)
        if len(offered) + len(held) == len(known) and held.isdisjoint(offered):
            rest = _NOTHING  # all that nobody holds is offered, as nearly always
        else:
            rest = frozenset(known.keys() - offered - held)
        ill = {card for card in set(map(card_of, rest)) if unhealthy(card)}
        if self._nodes:
            aligned = {self._nodes[card] for card in set(map(card_of, offered))}
            ill |= {card for card, node in self._nodes.items() if node not in aligned}
        self._withheld[resource] = frozenset(each for each in rest if card_of(each) not in ill)
        for ref, places in tuple(self._restored.items()):
            if ref.pod in ledger.known:  # listed: the ledger says what it holds
                del self._restored[ref]
            elif not offered.isdisjoint(places.get(resource, _NOTHING)):
                # Of a container all is counted, or nothing.
                del self._restored[ref]
                if resource.other in self._withheld:
                    self._withheld[resource.other] -= places.get(resource.other, _NOTHING)

    def _note_released(self, resource: Resource, offered: AbstractSet[str], ledger: Ledger) -> None:
        """Remember what containers had that left the ledger, until it is offered again.

        ``List`` shows a rejected pod no more, and the kubelet frees its devices later: after a
        restart not before all pods of the first batch are admitted (K21).
        """
        current, gone = ledger.places(), ledger.all_no_longer_listed()
        if gone:
            current = {ref: places for ref, places in current.items() if ref.pod not in gone}
        left = set(self._previous).difference(current)
        if left:
            self._released |= {ref: places for ref, places in self._previous.items() if ref in left}
        self._previous = current
        held = _all_of(resource, current) if self._released else _NOTHING
        for ref, places in tuple(self._released.items()):
            mine = places.get(resource, _NOTHING)
            if ref in current or not offered.isdisjoint(mine) or (mine and mine <= held):
                del self._released[ref]
        for ref in tuple(self._released)[:-_MOST_ENDED]:
            del self._released[ref]

    def withheld(self, asked: Resource, ledger: Ledger) -> tuple[WithheldCounts, ...]:
        """Count what is probably not to be had, though nobody is known to hold it.

        Args:
            asked: the resource that is asked for now, of which the offer is known.
            ledger: who holds what.

        Returns:
            The longest list first, then such of which less is doubtful.
        """
        other, withheld = asked.other, self._withheld.get(asked, _NOTHING)
        withheld_other = self._withheld.get(other, _NOTHING)
        if not (withheld or withheld_other or self._restored or self._released):
            return ()
        explained: set[str] = set()
        possible: set[str] = set()
        for ended in (self._restored, self._released):
            for places in ended.values():
                mine, its = places.get(asked, _NOTHING), places.get(other, _NOTHING)
                if mine:
                    explained |= mine
                    withheld_other |= its
                # What was offered of the other resource while a container was there says nothing.
                elif ended is self._released or other not in self._withheld:
                    possible |= its
        # Whoever is unknown and has places of a card probably has both kinds of them.
        cards = {card_of(each) for each in withheld - explained}
        by_card = self._table.by_card(other)
        likely = _NOTHING.union(*(by_card[card] for card in cards if other not in self._withheld))
        # What a pod holds that is over counts as free, unless it is withheld.
        held = ledger.held(other) - _all_of(other, self._released) | _all_of(other, self._previous)
        released = _all_of(asked, self._released) - _all_of(asked, self._previous)
        asked_count = Counter(map(card_of, withheld | released))
        lists: list[WithheldCounts] = []
        for places_of_other in (
            withheld_other | likely | possible,
            withheld_other | likely,
            withheld_other,
        ):
            count = Counter(map(card_of, places_of_other - held))
            counts: WithheldCounts = {asked: asked_count, other: count}
            if counts not in lists:
                lists.append(counts)
        return tuple(lists)


def _all_of(resource: Resource, holdings: Mapping[ContainerRef, Places]) -> frozenset[str]:
    return _NOTHING.union(*(places.get(resource, _NOTHING) for places in holdings.values()))
