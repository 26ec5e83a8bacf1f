"""Settling a call of the kubelet: who is asking, and what comes of that.

Preferred calls and ``Allocate`` are settled alike: look, resolve, try an answer for whoever is
asking; where several may be, for the next; where nobody can be, look once more. A refusal ends
the call, and the pod that it was made for.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from agent.allocator.allocation_publisher import AllocationPublisher
from agent.allocator.model.pod_view import PodView
from agent.allocator.model.ports import DecisionLog
from agent.allocator.node_state import NodeState
from agent.allocator.reservations import ref_of
from agent.allocator.resolver.call_context import CallContext
from agent.allocator.resolver.observer import Observer
from agent.allocator.resolver.resolve import Resolution
from agent.allocator.resolver.resolver import Resolver
from agent.errors import Refusal, ResolutionError
from contract.allocation import Evidence
from contract.resource import Resource

_Answer = TypeVar("_Answer")
Attempt = Callable[[Resolution, PodView | None], _Answer]
"""Makes the answer for a container that may be asking, and what is known of its pod."""


@dataclass(slots=True)
class Call:
    """One call of the kubelet.

    Attributes:
        name: ``prefer`` or ``allocate``.
        resource: for what.
        size: for how many places.
        offered: the device IDs to choose from.
        must: those of them that are to be chosen.
        chosen: the device IDs that the kubelet has chosen itself.
        asker: who was found to be asking; ``None`` before.
    """

    name: str
    resource: Resource
    size: int
    offered: AbstractSet[str] = frozenset()
    must: Sequence[str] = ()
    chosen: Sequence[str] = ()
    asker: Resolution | None = None


class Settler:
    """Finds who is asking, and the answer that holds for it."""

    def __init__(
        self,
        *,
        state: NodeState,
        resolver: Resolver,
        observer: Observer,
        publisher: AllocationPublisher,
        decision_log: DecisionLog,
    ) -> None:
        """Settle calls on *state*."""
        self._state = state
        self._resolver = resolver
        self._observer = observer
        self._publisher = publisher
        self._decision_log = decision_log

    @contextmanager
    def refusing(self, call: Call) -> Iterator[None]:
        """Record a refusal, which ends the pod that *call* was made for.

        Where several may have been asking, nobody is refused in another's name.
        """
        try:
            yield
        except Refusal as error:
            asker, ref = call.asker, None
            if asker is not None:
                certain = asker.evidence is not Evidence.ORDER
                with self._state:
                    self._resolver.refuse(ref_of(asker), certain=certain)
                    self._state.reservations.drop(asker.pod)
                ref = None if asker.rivals else ref_of(asker)
            self._decision_log.refused(call.name, ref, call.resource, call.size, str(error))
            raise

    def settle(self, call: Call, attempt: Attempt[_Answer]) -> _Answer:
        """Find who is asking, and return the answer for it.

        Args:
            call: the call.
            attempt: makes the answer; called with the lock held.

        Raises:
            Refusal: nobody can be asking this, or no answer holds.
        """
        resource = call.resource
        with self._state:  # held by the ledger and offered all the same: those were freed
            freed = (self._state.ledger.held(resource) & call.offered) - frozenset(call.must)
            ask = self._resolver.ask(resource, call.size, call.must or call.chosen)
        context = self._observer.look(
            frozenset((resource, each) for each in freed),
            named=frozenset((resource, each) for each in call.chosen),
            ask=ask,
        )
        try:
            return self._try(call, attempt, context)
        except ResolutionError:
            self._observer.look_again(context, ask)
        return self._try(call, attempt, context)

    def _try(self, call: Call, attempt: Attempt[_Answer], context: CallContext) -> _Answer:
        """Resolve, and make the answer for the likeliest for which there is one."""
        with self._publisher.reconciling(self._resolver):
            asker = self._resolver.resolve(
                call.resource, call.size, call.must or call.chosen, context
            )
            call.asker = asker
            refusal: Refusal | None = None
            for each in (asker, *asker.rivals):
                try:
                    answer = attempt(each, self._state.pod_index.view(each.pod))
                except Refusal as error:
                    refusal = refusal or error
                else:
                    if each is not asker:
                        self._resolver.admissions.settle_instead(each.pod)
                    return answer
            assert refusal is not None  # noqa: S101 -- there is one asker at least
            raise refusal
