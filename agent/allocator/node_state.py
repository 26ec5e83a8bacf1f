"""What the allocator remembers of its node, under one lock."""

import threading
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import TracebackType
from typing import Self

from agent.allocator.corrections import (
    by_checkpoint,
    by_list,
    by_offer,
    identified,
    without_guesses,
)
from agent.allocator.in_service import Answered, InService
from agent.allocator.kubelet_history import KubeletHistory
from agent.allocator.model.checkpoint import Checkpoint
from agent.allocator.model.containers import ContainerRef, Correction
from agent.allocator.model.podresources import ListedPod
from agent.allocator.pods import Pods, kubelet_uid
from agent.allocator.record import Offered, Record, Seen, read_record
from agent.allocator.recorded_pod import Settled, settle
from agent.allocator.resolver import Resolution
from agent.allocator.saved_state import Store, decode, encode, encode_turn
from agent.allocator.turn import Turn
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import Key, PodId, PodInfo
from placement.search import Plan

_MOST_UNADVISED = 64


class NodeState:
    """The sources of the record as they were last seen, and what one call leaves for the next.

    ``with state:`` holds the lock. It covers memory only: nothing outside is asked meanwhile.

    Attributes:
        pods: what the API shows of pods.
        turn: whose turn it was (R3).
        service: the pod in service.
        answers: how many answers this process has given.
        listed: the entries of ``List`` as they were seen last; ``None`` where it could not be had.
        written: the checkpoint as it was read last; ``None`` where it could not be read.
    """

    def __init__(self, store: Store) -> None:
        """Start with what the agent before has left in *store*."""
        self.pods = Pods()
        self._record = Record()
        self._stale = False
        self._settled = Settled()
        self._entries: Sequence[ListedPod] | None = None  # of ``List``, less those settled
        self._store = store
        self.service, self.turn = decode(store.load())
        self._turn_as_text = self.turn, encode_turn(self.turn)
        self.answers = 0
        self.listed: Sequence[ListedPod] | None = None
        self._earlier: InService | None = None
        self._offered: Offered = {}
        self._kubelet = ""
        self.written: Checkpoint | None = None
        self._ever_written: set[str] = set()  # UIDs that the checkpoint has shown
        self._confirmed: set[str] = set()  # UIDs of which no other pod can be meant
        self._history = KubeletHistory()
        if self.service is not None and self.service.confirmed:
            self._confirmed.add(self.service.uid)
        self._synced = False
        self._plan: tuple[PodId, Plan] | None = None
        self._unadvised: dict[frozenset[str], None] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Take the lock."""
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._lock.release()

    # --- sources ------------------------------------------------------------------------

    def meet_kubelet(self, life: str) -> None:
        """Apply which life of the kubelet is there: a new one tries every pod anew."""
        saved = self.service.kubelet if self.service is not None else life
        if life != (self._kubelet or saved):
            self.service, self._earlier, self.turn = None, None, Turn()
            self._history = KubeletHistory()
            self.listed, self._entries, self._settled = None, None, Settled()
            self._plan = None
        self._kubelet = life

    def update(self, views: Sequence[PodInfo], *, synced: bool) -> None:
        """Apply what the API shows."""
        self.pods.update(views)
        self._synced = synced

    def confirm(
        self,
        names: Collection[Key],
        shown: AbstractSet[str],
        told: Callable[[Key], Sequence[str]],
    ) -> None:
        """Apply what the API has told since ``List`` showed the pods of the record.

        Args:
            names: the names that were read.
            shown: the kubelet's UIDs of the pods that the API showed before ``List``.
            told: the UIDs of the pods of a name, as they came, by the watch.
        """
        before = len(self._confirmed)
        for each in self.record.listed_unsettled:
            new = self.turn.is_new(each, self.record)
            if each.id.key in names and new:
                uids = map(kubelet_uid, self.pods.of_name(each.id.key))
                self._confirmed |= {uid for uid in uids if uid in shown and self.pods.is_shown(uid)}
            if each.lacks and each.view is not None:
                named = told(each.id.key)
                # Those of a name are admitted as they came (K1): none of before comes to List now.
                met = (
                    [at for at, uid in enumerate(named) if uid in self._history.met] if new else []
                )
                if list(named[met[-1] + 1 if met else 0 :]) == [each.id.uid]:
                    self._confirmed.add(each.uid)
        self._stale = self._stale or len(self._confirmed) > before

    def see(
        self,
        written: Checkpoint | None,
        listed: Sequence[ListedPod] | None,
        *,
        offered: Offered | None = None,
        settled: bool = False,
    ) -> list[Correction]:
        """Apply what checkpoint and ``List`` show; return which guesses that has disproved.

        Args:
            written: the checkpoint; ``None`` where it cannot be read.
            listed: the entries of ``List``; ``None`` where it cannot be had.
            offered: what the kubelet offers in the call that came.
            settled: the kubelet has taken in all our answers: ``List`` shows them by now.
        """
        before = self.written or written or Checkpoint()
        self._ever_written |= before.pods.keys()
        if listed is None:
            self._entries, self._settled = None, Settled()
        elif written is not self.written or listed is not self.listed:
            self._settled = settle(
                self._record.settled,
                self._record.listed_unsettled,
                written=written or Checkpoint(),
                listed=listed,
                services=self._services,
                pods=self.pods,
            )
            settled_entries = self._settled.by_entry
            self._entries = [each for each in listed if id(each) not in settled_entries]
        self.written, self.listed, self._offered = written, listed, offered or {}
        corrections = self._correct(before, written) if written is not None else []
        self._stale = True
        if settled and self.service is not None:
            was, record = self.service, self.record
            if listed is not None:
                self.service, wrong = by_list(was, record)
                corrections += wrong
            self.service = by_offer(self.service, self._offered, written or Checkpoint(), record)
            if self._is_disproved(was, self.service):
                self.turn = self.turn.disproved()
            self._stale = self.service is not was
        self._remember(offered=bool(offered))
        self.turn = self.turn.without_departed(self.record, self._history.listed)
        return corrections

    def _is_disproved(self, was: InService, now: InService) -> bool:
        """Return whether an answer was another pod's; of its own, the container alone was wrong."""
        lost = [each for each in was.answers if each not in now.answers]
        lost = [each for each in lost if not any(each.is_for_same(one) for one in now.answers)]
        mine = [each for each in self.record.listed_unsettled if was.is_pod(each.id, each.uid)]
        return any(
            not any(pod.shows_exactly(each.resource, each.ids) for pod in mine) for each in lost
        )

    def doubt_guesses(self) -> None:
        """Forget guesses that neither checkpoint nor ``List`` shows."""
        if self.service is not None:
            self.service = without_guesses(self.service)

    def correct(self, written: Checkpoint) -> list[Correction]:
        """Apply what a newer checkpoint says of our answers alone; return the wrong guesses.

        The record stays that of the last look: ``List``, which is older, would contradict the file.
        """
        was = self.service
        found = self._correct(self.written or written, written)
        self._stale = self._stale or self.service is not was
        return found

    def is_something_over(self) -> bool:
        """Return whether a pod holds something that the API shows no more, or as ended."""
        return any(
            each.held
            and not each.over
            and (view := self.pods.by_uid(each.uid)) is not None
            and (view.terminal or not self.pods.is_shown(each.uid))
            for each in self.record.pods
        )

    def has_ended(self, uid: str) -> bool:
        """Return whether a pod, by the kubelet's UID, has ended: its entry may stay on (K29)."""
        known, view = self.record.of_uid(uid), self.pods.by_uid(uid)
        if known is not None:
            return known.over or (view is not None and view.terminal)
        return view.terminal if view is not None else uid in self._ever_written

    def _correct(self, before: Checkpoint, written: Checkpoint) -> list[Correction]:
        if self.service is None:
            return []
        entries = self.listed or ()
        service = identified(self.service, before, written, entries=entries, pods=self.pods)
        self.service, found = by_checkpoint(
            service, before, written, may_be_new=self._may_be_new, pods=self.pods
        )
        return found

    def _may_be_new(self, uid: str) -> bool:
        """Return whether an entry of the checkpoint may be new (K29, K33)."""
        view = self.pods.by_uid(uid)
        if view is None:
            return uid not in self._ever_written
        if self.listed is None:
            return not view.terminal
        return any(entry.key == view.id.key for entry in self.listed)

    def _remember(self, *, offered: bool) -> None:
        """Keep which pods were listed, and whose places were offered (R2)."""
        self._history.add(self.record, offered=offered)
        if self.record.listing:  # a name that has gone may come back as another pod's
            listed = {each.uid for each in self.record.listed_unsettled}
            self._confirmed &= self.record.settled.by_uid.keys() | listed

    def take_turn(self, turn: Turn) -> None:
        """Apply whose turn it is now."""
        before, self.turn = self.turn, turn
        if (turn.asker, turn.passed) != (before.asker, before.passed):
            self._stale = True

    @property
    def record(self) -> Record:
        """Who holds what, by what was seen last."""
        if self._stale:
            self.rebuild()
        return self._record

    @property
    def _services(self) -> Sequence[InService]:
        return [each for each in (self.service, self._earlier) if each is not None]

    def rebuild(self, offered: Offered | None = None) -> None:
        """Put the record together anew, from what was seen last.

        Args:
            offered: what the kubelet offers, where that is not what the last look was told.
        """
        turn = self.turn
        self._stale = False
        self._record = read_record(
            written=self.written or Checkpoint(),
            listed=self._entries,
            services=self._services,
            pods=self.pods,
            seen=Seen(
                listed=self._history.listed,
                freed=self._history.freed,
                confirmed=self._confirmed,
                met=self._history.met,
                asker=turn.asker if turn.asker not in turn.passed else None,
                passed=turn.passed,
                offered=self._offered if offered is None else offered,
                synced=self._synced,
            ),
            settled=self._settled,
        )

    # --- the pod in service ---------------------------------------------------------------

    def answer(
        self,
        resolution: Resolution,
        resource: Resource,
        ids: frozenset[str],
        *,
        allocated: bool,
    ) -> None:
        """Record an answer to a container; :meth:`save` has to come before it leaves."""
        service = self.service
        if service is None or service.pod != resolution.pod:
            found = self.record.pod(resolution.pod)
            uid = found.uid if found is not None else resolution.pod.uid
            self._earlier, service = service, InService(self._kubelet, resolution.pod, uid)
        name = resolution.container.name
        self.service = service.answered(
            Answered(name, resource, ids, resolution.evidence, allocated)
        )
        self.answers += 1
        self._stale = self._stale or allocated

    def save(self) -> None:
        """Write what the next agent has to know."""
        service = self.service
        if service is not None:
            service = replace(service, confirmed=service.uid in self._confirmed)
        if self.turn is not self._turn_as_text[0]:
            self._turn_as_text = self.turn, encode_turn(self.turn)
        self._store.save(encode(service, self._turn_as_text[1]))

    def refuse(self, pod: PodId | None) -> None:
        """Apply that a call was refused: the kubelet rejects the pod, and frees what it has."""
        self.turn = self.turn.refused(self.record)
        if self.service is not None and pod in {None, self.service.pod}:
            self.service = replace(self.service, answers=())
        self._plan = None

    def last_answer(
        self, resource: Resource, ids: frozenset[str], written: Checkpoint | None
    ) -> Answered | None:
        """Return the last answer, if an ``Allocate`` of *ids* carries it out or repeats it.

        A call is asked again only where an agent has died before its answer arrived. One that
        hands an init container's places on looks the same (K7): then the file has that container.
        """
        service = self.service
        if service is None or not service.answers:
            return None
        last = service.answers[-1]
        if (last.resource, last.ids) != (resource, ids):
            return None
        if last.allocated:
            had = written.pods.get(service.uid, {}) if written is not None else {}
            if self.answers or had.get(last.container, {}).get(resource):
                return None
        return last

    def prove(self, uid: str, container: str, resource: Resource) -> None:
        """Apply that the checkpoint shows a container with just what it was answered."""
        if self.service is not None and self.service.uid == uid:
            for each in self.service.answers:
                if (each.container, each.resource) == (container, resource):
                    self.service = self.service.proven(each)

    def evidence(self, ref: ContainerRef, resource: Resource) -> Evidence:
        """Return how it was settled that a container holds what it holds."""
        if self.service is not None and self.service.pod == ref.pod:
            for each in self.service.answers:
                if (each.container, each.resource) == (ref.container, resource):
                    return each.evidence
        return Evidence.RECORD

    # --- placing ------------------------------------------------------------------------

    def plan(self, pod: PodId) -> Plan | None:
        """Return which cards are planned for the containers of *pod* that are not served yet."""
        return self._plan[1] if self._plan is not None and self._plan[0] == pod else None

    def keep_plan(self, pod: PodId, plan: Plan) -> None:
        """Plan cards for the containers of a pod; the kubelet admits one pod at a time (K1)."""
        self._plan = pod, plan

    def note_advice(self, ids: frozenset[str], *, known: bool) -> None:
        """Record whether the wishes of the pod's author were known when *ids* were chosen."""
        self._unadvised.pop(ids, None)
        if not known:
            self._unadvised[ids] = None
            while len(self._unadvised) > _MOST_UNADVISED:
                del self._unadvised[next(iter(self._unadvised))]

    def is_unadvised(self, ids: frozenset[str]) -> bool:
        """Return whether *ids* were chosen without the wishes of the pod's author."""
        return ids in self._unadvised
