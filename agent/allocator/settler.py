"""Settling a call of the kubelet: which container is asking, and what comes of that."""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from agent.allocator.model.grant import check_free
from agent.allocator.model.ports import DecisionLog
from agent.allocator.node_state import NodeState
from agent.allocator.observer import Observer
from agent.allocator.record import Offered
from agent.allocator.resolver import Request, Resolution, resolve
from agent.errors import GrantError, Refusal, ResolutionError
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId

_Answer = TypeVar("_Answer")
Attempt = Callable[[Resolution], _Answer]
"""Makes the answer for a container that may be asking."""


@dataclass(slots=True)
class Call:
    """One call of the kubelet.

    Attributes:
        name: ``prefer`` or ``allocate``.
        resource: for what.
        size: for how many places.
        offered: the device IDs to choose from.
        named: the device IDs that the container gets in any case.
        asker: the container that was found to be asking; ``None`` before.
    """

    name: str
    resource: Resource
    size: int
    offered: AbstractSet[str] = frozenset()
    named: Sequence[str] = ()
    asker: Resolution | None = None

    @property
    def for_anybody(self) -> Offered:
        """What the kubelet offers, whichever container it is."""
        return {self.resource: self.offered - frozenset(self.named)} if self.offered else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settler:
    """Finds who is asking, and the answer that holds for it."""

    state: NodeState
    observer: Observer
    decision_log: DecisionLog

    @contextmanager
    def refusing(self, call: Call) -> Iterator[None]:
        """Record a refusal, which ends the pod that *call* was made for.

        Where several may have been asking, nobody is refused in another's name.
        """
        try:
            yield
        except Refusal as error:
            asker = call.asker
            with self.state as state:
                state.refuse(asker.pod if asker is not None else None)
                state.save()
            ref = asker.ref if asker is not None and not asker.rivals else None
            self.decision_log.refused(call.name, ref, call.resource, call.size, str(error))
            raise

    def settle(self, call: Call, attempt: Attempt[_Answer]) -> _Answer:
        """Find who is asking, and return the answer for it.

        Args:
            call: the call.
            attempt: makes the answer; called with the lock held.

        Raises:
            Refusal: no container can be asking this, or no answer holds.
        """
        self.observer.look_for(call.for_anybody)
        try:
            return self._try(call, attempt, last_resort=False)
        except ResolutionError:
            self.observer.look_again(call.for_anybody)
        return self._try(call, attempt, last_resort=True)

    def _try(self, call: Call, attempt: Attempt[_Answer], *, last_resort: bool) -> _Answer:
        """Resolve, and make the answer for the likeliest for which there is one."""
        with self.state as state:
            record, before = state.record, state.turn
            asker = call.asker = resolve(self._read(call), record, before, last_resort=last_resort)
            refusals: list[Refusal] = []
            for each in (asker, *asker.rivals):
                guessed = each.evidence is Evidence.ORDER
                state.take_turn(before.after(record, each.pod, guessed=guessed))
                try:
                    return attempt(each)
                except Refusal as error:
                    refusals.append(error)
            state.take_turn(before.after(record, asker.pod, guessed=True))
            raise refusals[0]

    def _read(self, call: Call) -> Request:
        """Return what the call reveals.

        Raises:
            GrantError: it names places of several pods, or such as a container keeps.
        """
        record, resource, named = self.state.record, call.resource, frozenset(call.named)
        kept = set(record.settled.held[resource] & named)
        owners: list[PodId] = []
        for each in record.unsettled:
            mine = each.places(resource) & named
            if mine:
                owners.append(each.id)
                kept |= mine - record.reusable(each.id, resource)
        check_free(resource, kept)
        if len(owners) > 1:
            raise GrantError(f"places of {resource} of several pods were named together")
        return Request(resource, call.size, owners[0] if owners else None)
