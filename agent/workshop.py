"""What enforcement needs of the turnstile: who may use what, what to make and what to sweep away.

One pod after the other is given something; what is made on disk for it is not swept away
before it is booked. The turnstile's lock is not held while something is made.
"""

import threading
from collections.abc import Callable

from agent.answer import Answer
from agent.entitlement import Entitlement, entitlement
from agent.errors import Unavailable
from agent.grant import Grant
from agent.ledger import Claim, Ledger
from agent.lookout import WITNESS_WITHIN, Lookout
from agent.podview import PodId
from agent.ports import Enforcer, RecordSource
from agent.tickets import Resource, TicketBook


class Workshop:
    """Puts an enforcer to work on what the ledger says."""

    def __init__(  # noqa: PLR0913 -- its owner's collaborators, by keyword
        self,
        *,
        enforcer: Enforcer | None,
        ledger: Ledger,
        book: TicketBook,
        lookout: Lookout,
        record: RecordSource,
        lock: threading.Lock,
    ) -> None:
        """Work for the owner of *ledger*, whose *lock* covers it."""
        self._enforcer = enforcer
        self._ledger = ledger
        self._book = book
        self._lookout = lookout
        self._record = record
        self._lock = lock
        self._making = threading.Lock()

    def make(
        self, claim: Claim, ids: frozenset[str], grant: Grant, *, then: Callable[[], None]
    ) -> Answer:
        """Make what a container will find; *then* book it.

        Raises:
            EnforcementError: it cannot be made; nothing is booked.
        """
        if self._enforcer is None:
            then()
            return Answer()
        with self._making:
            answer = self._enforcer.answer(claim, ids, grant)
            then()
        return answer

    def start(self, claim: Claim | None, ids: frozenset[str]) -> None:
        """Make ready for the container that is about to start with these core places.

        Where nothing is proven (ordinary init containers are in no record) it is the container
        that they were given to, if that is one.

        Raises:
            EnforcementError: it cannot be made ready.
        """
        if self._enforcer is None:
            return
        with self._lock:
            if claim is None:
                guessed = self._ledger.find(Resource.CORE, ids)
                claim = guessed[0] if len(guessed) == 1 else None
            about = None if claim is None else self._entitlement(claim)
        self._enforcer.start(ids, about)

    def entitled(self, pod_uid: str, container: str) -> Entitlement | None:
        """Give what a running container may use; ``None`` when it holds nothing here.

        Args:
            pod_uid: its pod, by what cannot come back as a name can.
            container: its name.
        """
        with self._lock:
            self._lookout.know()
            for claim, _, _ in self._ledger.claims():
                if (claim.pod.uid, claim.container) == (pod_uid, container):
                    return self._entitlement(claim)
        return None

    def sweep(self) -> None:
        """Let go of what was made for pods that are gone.

        Kept is what the API shows, what is booked, and what the kubelet's record shows; while
        that cannot be had, everything is.
        """
        if self._enforcer is None:
            return
        try:
            snapshot = self._record.list(within=WITNESS_WITHIN)
        except Unavailable:
            return
        listed = {PodId(each.namespace, each.name, "") for each in snapshot.pods}
        with self._making:
            with self._lock:
                known = self._lookout.know().known
                booked = {claim.pod for claim, _, _ in self._ledger.claims()}
            self._enforcer.keep(known | booked | listed)

    def _entitlement(self, claim: Claim) -> Entitlement | None:
        view = self._lookout.roster.view(claim.pod)
        return entitlement(self._ledger, self._book, claim, view)
