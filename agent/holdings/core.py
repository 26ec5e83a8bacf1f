"""What both doors to the cards do alike, on the holdings that each of them knows.

A door derives from :class:`NodeCore`. It handles the kubelet's calls, and says what containers
hold; annotations, limits, gauges and free amounts follow from that in the same way.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from agent.holdings.annotation import AllocationPublisher
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import Holding, NodeHoldings
from agent.holdings.interfaces import AnnotationWriter, Enforcer, NodePods
from contract.allocation import Allocation
from contract.inventory import NOTHING
from contract.resource import Resource
from placement.pods import PodId, PodInfo


class Enforcement:
    """Calls the enforcer. Safe to share between threads.

    Containers are prepared one after the other; files that are made for one are not removed before
    its holding is known.

    Attributes:
        limits: whether starts are prepared.
    """

    def __init__(self, enforcer: Enforcer, inject: Callable[[Holding], ContainerEdits]) -> None:
        """Prepare nothing yet; *inject* makes the cards of a holding available."""
        self.limits = enforcer.limits
        self._enforcer = enforcer
        self._inject = inject
        self._preparing = threading.Lock()

    @contextmanager
    def preparing(self, *holdings: Holding) -> Iterator[list[ContainerEdits]]:
        """Prepare the files of containers, and return the edits of each, with its cards.

        In the ``with`` block no files are removed; there the caller makes the holdings known.

        Raises:
            EnforcementError: the files cannot be made.
            GrantError: a card has no CDI name.
        """
        injected = [self._inject(each) for each in holdings]
        with self._preparing:
            yield [
                edits.merged_with(self._enforcer.prepare_allocation(each))
                if each.cores_per_card or each.memory_limits  # otherwise memory of whole cards
                else edits
                for edits, each in zip(injected, holdings, strict=True)
            ]

    def start(self, candidates: Sequence[Holding]) -> None:
        """Prepare the container that is about to start, of those of a pod with the same key.

        Raises:
            EnforcementError: its files cannot be made.
        """
        several = len(candidates) > 1
        about = self._enforcer.identify_starting(candidates) if several else candidates[0]
        self._enforcer.prepare_start(about)

    def remove_except(self, owners: Callable[[], Collection[PodId]]) -> None:
        """Remove the files of all pods except the *owners*, which are looked up meanwhile."""
        with self._preparing:
            self._enforcer.prune(owners())


class NodeCore(ABC):
    """Follows what the containers of one node hold. Safe to share between threads."""

    def __init__(
        self,
        *,
        pods: NodePods,
        writer: AnnotationWriter,
        enforcer: Enforcer,
        inject: Callable[[Holding], ContainerEdits],
    ) -> None:
        """Start without holdings; they are read from the door when they are needed."""
        self._pods = pods
        self._enforcement = Enforcement(enforcer, inject)
        self._publisher = AllocationPublisher(self._find_allocations, writer)

    # --- what a door knows -------------------------------------------------------------

    @abstractmethod
    def holdings(self) -> NodeHoldings:
        """Return what containers hold now."""

    @abstractmethod
    def may_have_changed(self) -> bool:
        """Return whether something announces changes that :meth:`observe` would apply."""

    @abstractmethod
    def observe(self) -> None:
        """Apply changes that came without a call."""

    @abstractmethod
    def _find_allocations(self, info: PodInfo) -> dict[str, Allocation]:
        """Return the allocations of a pod's containers; empty if none is to be written yet."""

    def _look_again(self) -> None:  # noqa: B027 -- claims are never unknown
        """Look for a pod that is not known yet, as far as that can help."""

    def _take_released(self) -> bool:
        """Return whether a call of the kubelet has given something back since the last time."""
        return False

    def _of_pods(self) -> AbstractContextManager[object]:
        """Hold what :meth:`_find_allocations` reads, up to date with the node's pods."""
        return nullcontext()

    def _other_owners(self) -> Collection[PodId] | None:
        """Return pods that keep their files although they hold nothing; ``None``: all pods do."""
        return ()

    # --- what follows from it ------------------------------------------------------------

    def refresh(self, *, thorough: bool = True) -> bool:
        """Observe, and write missing annotations; return whether something has become free.

        If *thorough*, it looks for changes that nothing has announced.
        """
        if not thorough and not self.may_have_changed():
            return False
        before = self.holdings().held
        self.observe()
        with self._of_pods():
            for info in self._pods.pods():
                self._publisher.publish(info)
        now = self.holdings().held
        return self._take_released() or any(
            not now.get(card, NOTHING).covers(each) for card, each in before.items()
        )

    def catch_up(self, info: PodInfo) -> None:
        """Write the allocation annotation of a pod if it is missing or out of date."""
        if info.terminal or not info.demand:
            return
        with self._of_pods():
            self._publisher.publish(info)

    def free(self, resource: Resource) -> dict[str, int]:
        """Count what can be given out of each card."""
        return {card: resource.count_in(each) for card, each in self.holdings().free.items()}

    def entitled(self, runtime_uid: str, container: str) -> Holding | None:
        """Return the holding of a running container; ``None`` if it holds nothing here.

        *runtime_uid* is the UID of its pod in the runtime.
        """
        holdings = self.holdings()
        if not any(each.runtime_uid == runtime_uid for each in holdings.holders):
            self._look_again()
            holdings = self.holdings()
        return holdings.find(runtime_uid, container)

    def sweep(self) -> None:
        """Remove the files of pods that hold nothing, and have ended or are not in the API."""
        others = self._other_owners()
        if others is None:
            return
        self._enforcement.remove_except(
            lambda: (
                {each.ref.pod for each in self.holdings().holders}
                | {each.id for each in self._pods.pods() if not each.terminal}
                | {*others}
            )
        )
