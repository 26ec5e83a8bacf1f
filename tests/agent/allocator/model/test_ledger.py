"""The book of held places, by example and against a model that says the rules in sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import PodId, PodView
from agent.allocator.model.podresources import ListedPod, MatchedPod
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    SIDECAR,
    container,
    hold,
    identified,
    ids,
    listed,
    patient,
    pod_id,
    view,
)

P, Q = pod_id("p"), pod_id("q")
A, B, C = ids("GPU-0", range(2)), ids("GPU-0", range(2, 4)), ids("GPU-1", range(2))
NONE: frozenset[str] = frozenset()
ONE = "GPU-0::0"


def _book(ledger: Ledger) -> dict[tuple[str, str, Resource], frozenset[str]]:
    """Everything held, short."""
    return {
        (ref.pod.uid, ref.container, resource): held.ids
        for ref, _, holdings in ledger.refs()
        for resource, held in holdings.items()
    }


# --- recording and releasing ---------------------------------------------------------


def test_what_is_recorded_is_found_again() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c0", MEMORY, B)
    hold(ledger, Q, "c0", CORE, C)
    assert ledger.holding(ref, CORE) == Holding(A, Evidence.WITNESS)
    assert ledger.find(CORE, A) == [ref]
    assert ledger.kind(ref) is MAIN
    assert ledger.pod_refs(P) == [ref]
    assert [str(each) for each, _, _ in ledger.refs()] == [
        "default/p container c0",
        "default/q container c0",
    ]
    assert ledger.owners[CORE, ONE] == P
    ledger.check()


def test_only_exactly_the_same_ids_are_found() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    assert ledger.find(CORE, A | B) == []
    assert ledger.find(CORE, frozenset({ONE})) == []
    assert ledger.find(MEMORY, A) == []


# --- K7: what init containers leave --------------------------------------------------


@pytest.mark.parametrize("kind", [MAIN, SIDECAR])
def test_places_handed_on_are_out_of_reach_for_everybody(kind: ContainerKind) -> None:
    ledger = Ledger()
    init = hold(ledger, P, "init", CORE, A, kind=INIT)
    later = hold(ledger, P, "c0", CORE, A, kind=kind)
    assert ledger.taken(CORE, ONE, but_reusable_by=P)
    assert ledger.find(CORE, A) == sorted([init, later])
    ledger.check()
    ledger.release_container(later)
    assert ledger.owners[CORE, ONE] == P
    assert not ledger.taken(CORE, ONE, but_reusable_by=P)
    ledger.check()


# --- reconciling ---------------------------------------------------------------------


def _reconcile(ledger: Ledger, *entries: MatchedPod, **given: object) -> list[Correction]:
    found = ledger.reconcile(entries, **given)  # type: ignore[arg-type] # as reconcile takes them
    ledger.check()
    return found


P_C0, P_C1, P_INIT = (ContainerRef(P, name) for name in ("c0", "c1", "init"))
Q_C0 = ContainerRef(Q, "c0")


@dataclass(frozen=True)
class Reconciled:
    """What was booked, what a list shows of the cores of p and q, and what is booked then.

    Attributes:
        booked: containers and their cores; ``init`` is an ordinary init container.
        shown: pod -> container -> cores; a pod that is not in it is not listed.
        after: as *booked*; the same unless told.
        given: what else ``reconcile`` is given.
        corrected: cores, who was guessed to have them, who has them.
    """

    booked: Mapping[ContainerRef, frozenset[str]]
    shown: Mapping[str, Mapping[str, frozenset[str]]]
    after: Mapping[ContainerRef, frozenset[str]] | None = None
    given: Mapping[str, object] = field(default_factory=dict)
    corrected: Sequence[tuple[frozenset[str], ContainerRef, ContainerRef]] = ()


BOTH_LIVE = {"live": {P, Q}}
RECONCILED = {
    "an empty book is rebuilt": Reconciled({}, {"p": {"c0": A, "c1": NONE}}, {P_C0: A}),
    "what a listed pod does not show it does not hold": Reconciled(
        {P_C0: A, P_C1: B}, {"p": {"c0": A}}, {P_C0: A}, BOTH_LIVE
    ),
    "init containers are never shown": Reconciled({P_INIT: A}, {"p": {"c0": NONE}}),
    "neither listed nor live: forgotten": Reconciled({P_INIT: A, P_C0: A}, {}, {}, {"live": {Q}}),
    "live, and a restarted kubelet has not come to it (K11)": Reconciled(
        {P_INIT: B, P_C0: A}, {"q": {"c0": C}}, {P_INIT: B, P_C0: A, Q_C0: C}, BOTH_LIVE
    ),
    "live, and the kubelet offers its places": Reconciled(
        {P_C0: A, Q_C0: B}, {}, {Q_C0: B}, BOTH_LIVE | {"offered": {(CORE, ONE)}}
    ),
    "live, and the kubelet offers those of one container": Reconciled(
        {P_C0: A, P_C1: B}, {}, {P_C0: A}, BOTH_LIVE | {"offered": {(CORE, each) for each in B}}
    ),
    "listed, though the kubelet offers its places (K15)": Reconciled(
        {P_C0: A}, {"p": {"c0": A}}, given=BOTH_LIVE | {"offered": {(CORE, ONE)}}
    ),
    "finished, and listed without devices (K8)": Reconciled(
        {P_INIT: A, P_C0: B}, {"p": {"c0": NONE}}, {}, BOTH_LIVE | {"finished": {P}}
    ),
    "a wrong guess": Reconciled(
        {P_C0: A}, {"p": {"c0": NONE}, "q": {"c0": A}}, {Q_C0: A}, corrected=[(A, P_C0, Q_C0)]
    ),
    "two guesses the wrong way round": Reconciled(
        {P_C0: A, Q_C0: B},
        {"p": {"c0": B}, "q": {"c0": A}},
        {P_C0: B, Q_C0: A},
        corrected=[(B, Q_C0, P_C0), (A, P_C0, Q_C0)],
    ),
    "a wrong container of the right pod": Reconciled(
        {P_C0: A}, {"p": {"c0": NONE, "c1": A}}, {P_C1: A}, corrected=[(A, P_C0, P_C1)]
    ),
    "a guess for a pod that is not listed yet": Reconciled(
        {P_C0: A, P_C1: B}, {"q": {"c0": A}}, {Q_C0: A, P_C1: B}, BOTH_LIVE, [(A, P_C0, Q_C0)]
    ),
    "a guess that overlaps in part": Reconciled(
        {P_C0: A | B}, {"p": {"c0": A}, "q": {"c0": B}}, {P_C0: A, Q_C0: B}
    ),
    "handed on by an init container: no correction": Reconciled(
        {P_INIT: A}, {"p": {"c0": A}}, {P_INIT: A, P_C0: A}
    ),
    "listed, and booked as an init container": Reconciled({P_INIT: A}, {"p": {"init": A}}),
}


@pytest.mark.parametrize("case", RECONCILED.values(), ids=RECONCILED)
def test_the_book_is_made_equal_to_the_kubelets_record(case: Reconciled) -> None:
    ledger = Ledger()
    for ref, held in case.booked.items():
        hold(ledger, ref.pod, ref.container, CORE, held, kind=INIT if ref == P_INIT else MAIN)
    entries = [
        identified(view(name), listed(name, **{each: {CORE: held} for each, held in shown.items()}))
        for name, shown in case.shown.items()
    ]
    assert _reconcile(ledger, *entries, **case.given) == [
        Correction(CORE, *each) for each in case.corrected
    ]
    after = case.booked if case.after is None else case.after
    assert {ref: held[CORE].ids for ref, _, held in ledger.refs()} == after
    for ref, held in after.items():
        if ref.container in case.shown.get(ref.pod.name, {}) and case.booked.get(ref) != held:
            assert ledger.holding(ref, CORE) == Holding(held, Evidence.RECORD, proven=True)


@pytest.mark.parametrize(
    ("evidence", "proven"),
    [(Evidence.ORDER, Evidence.RECORD), (Evidence.WITNESS, Evidence.WITNESS)],
)
def test_a_holding_that_the_record_shows_is_proven_and_no_guess_any_more(
    evidence: Evidence, proven: Evidence
) -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, A, evidence=evidence)
    hold(ledger, Q, "init", CORE, B, kind=INIT)
    assert _reconcile(ledger, identified(view("p"), listed("p", c0={CORE: A})), live={Q}) == []
    assert ledger.holding(ref, CORE) == Holding(A, proven, proven=True)


def test_a_sidecar_stays_a_sidecar() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "side", CORE, A, kind=SIDECAR)
    _reconcile(ledger, identified(view("p"), listed("p", side={CORE: B})))
    assert ledger.holding(ref, CORE) == Holding(B, Evidence.RECORD, proven=True)


def test_the_record_speaks_each_time_and_not_only_the_first() -> None:
    ledger = Ledger()
    entry = identified(view("p"), listed("p", c0={CORE: A}))
    for _ in range(3):
        _reconcile(ledger, entry)
    ledger.release_container(ContainerRef(P, "c0"))
    _reconcile(ledger, entry)
    assert _book(ledger) == {("u-p", "c0", CORE): A}
    for _ in range(2):
        _reconcile(ledger, entry)
    hold(ledger, P, "c1", CORE, B)
    _reconcile(ledger, entry)
    assert _book(ledger) == {("u-p", "c0", CORE): A}


# --- UIDs told later -----------------------------------------------------------------


def test_a_pod_booked_by_name_alone_gets_its_uid_once_the_api_has_told_it() -> None:
    ledger = Ledger()
    entry = listed("p", c0={CORE: A, MEMORY: B})
    _reconcile(ledger, identified(pod_id("p", ""), entry))
    assert _book(ledger) == {("", "c0", CORE): A, ("", "c0", MEMORY): B}
    assert _reconcile(ledger, identified(view("p"), entry), live={P}) == []
    assert _book(ledger) == {("u-p", "c0", CORE): A, ("u-p", "c0", MEMORY): B}


def test_a_uid_is_adopted_with_kind_evidence_and_init_containers() -> None:
    ledger = Ledger()
    nameless = pod_id("p", "")
    hold(ledger, nameless, "init", CORE, A, kind=INIT, evidence=Evidence.ORDER)
    _reconcile(ledger, identified(view("p"), listed("p", c0=None)))
    ref = ContainerRef(P, "init")
    assert ledger.kind(ref) is INIT
    assert ledger.holding(ref, CORE) == Holding(A, Evidence.ORDER)
    assert ledger.owners[CORE, ONE] == P


def test_a_pod_of_another_name_does_not_adopt() -> None:
    ledger = Ledger()
    entry = identified(pod_id("p", ""), listed("p", c0={CORE: A}))
    _reconcile(ledger, entry)
    _reconcile(ledger, entry, live={Q})
    assert _book(ledger) == {("", "c0", CORE): A}


# --- whatever a list shows -----------------------------------------------------------

_some = st.frozensets(st.sampled_from(sorted(A | B)), max_size=3)
_holdings = st.none() | st.dictionaries(st.sampled_from(Resource), _some)
_lists = st.lists(
    st.builds(
        lambda name, uid, held: identified(pod_id(name, uid), listed(name, **held)),
        st.sampled_from("pq"),
        st.sampled_from(["", "u1", "u2"]),
        st.dictionaries(st.sampled_from(["init", "c0", "c1"]), _holdings),
    ),
    max_size=3,
    unique_by=lambda each: each.pod,
)
_pod_sets = st.frozensets(st.builds(pod_id, st.sampled_from("pq"), st.sampled_from(["u1", "u2"])))


@patient
@given(
    st.lists(st.tuples(_lists, _pod_sets, _pod_sets), max_size=4),
    st.lists(st.tuples(st.sampled_from(Resource), _some), max_size=2),
)
def test_no_list_however_contradictory_breaks_the_book(
    lists: list[tuple[list[MatchedPod], frozenset[PodId], frozenset[PodId]]],
    first: list[tuple[Resource, frozenset[str]]],
) -> None:
    """Not even one that shows a place with two containers: the last one has it."""
    ledger = Ledger()
    for resource, held in first:
        if held:
            hold(ledger, pod_id("p", "u1"), "init", resource, held, kind=INIT)
    for entries, live, finished in lists:
        ledger.reconcile(entries, live=live, finished=finished)
        ledger.check()
        for ref, _, holdings in ledger.refs():
            assert holdings
            assert ref in ledger.pod_refs(ref.pod)


# --- against a model -----------------------------------------------------------------

_PODS = [view("p"), view("q"), view("r"), view("p", uid="u-p2")]
_PLACES = sorted(ids("GPU-0", range(6)))
_CONTAINERS = {"init": INIT, "side": SIDECAR, "c0": MAIN, "c1": MAIN}
_Key = tuple[PodId, str, Resource]


class KubeletAndLedger(RuleBasedStateMachine):
    """The ledger beside a kubelet that is a set of sets.

    The kubelet of this model books as the real one does: a place has one pod; the places of
    an ordinary init container go on to later containers; a pod that ends frees all of its
    places. The ledger learns of it by ``record`` and by ``List``, now and then wrongly.
    """

    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.kubelet: dict[_Key, frozenset[str]] = {}
        self.live: dict[PodId, PodView] = {}
        self.shown: dict[PodId, ListedPod] = {}

    @initialize(target=pods)
    def first(self) -> PodView:
        self.live[_PODS[0].id] = _PODS[0]
        return _PODS[0]

    def _free(self, pod: PodId, resource: Resource) -> list[str]:
        """What the kubelet could hand a container of *pod*."""
        taken = {
            each
            for (owner, name, kind), held in self.kubelet.items()
            if kind is resource and (owner != pod or _CONTAINERS[name] is not INIT)
            for each in held
        }
        return [each for each in _PLACES if each not in taken]

    def _entries(self) -> list[MatchedPod]:
        found = []
        for pod, seen in self.live.items():
            shown: dict[str, dict[Resource, frozenset[str]] | None] = {
                name: {
                    resource: self.kubelet[pod, name, resource]
                    for resource in Resource
                    if (pod, name, resource) in self.kubelet
                }
                for name, kind in _CONTAINERS.items()
                if kind is not INIT
            }
            entry = listed(pod.name, **shown)
            if self.shown.get(pod) != entry:  # what has not changed is the same object again
                self.shown[pod] = entry
            found.append(identified(seen, self.shown[pod]))
        return found

    @rule(target=pods, pod=st.sampled_from(_PODS))
    def bind(self, pod: PodView) -> PodView:
        self.live[pod.id] = pod
        return pod

    @rule(
        pod=pods,
        name=st.sampled_from(sorted(_CONTAINERS)),
        resource=st.sampled_from(Resource),
        evidence=st.sampled_from(Evidence),
        data=st.data(),
    )
    def allocate(
        self, pod: PodView, name: str, resource: Resource, evidence: Evidence, data: st.DataObject
    ) -> None:
        """The kubelet allocates, and the agent books it to whom it was for."""
        free = self._free(pod.id, resource)
        if pod.id not in self.live or (pod.id, name, resource) in self.kubelet or not free:
            return
        held = data.draw(st.frozensets(st.sampled_from(free), min_size=1, max_size=3))
        self.kubelet[pod.id, name, resource] = held
        hold(self.ledger, pod.id, name, resource, held, kind=_CONTAINERS[name], evidence=evidence)

    @rule(
        pod=pods,
        wrong=pods,
        resource=st.sampled_from(Resource),
        is_listed=st.booleans(),
        data=st.data(),
    )
    def allocate_and_guess_wrong(
        self,
        pod: PodView,
        wrong: PodView,
        resource: Resource,
        is_listed: bool,
        data: st.DataObject,
    ) -> None:
        """The agent books to another pod, listed or not; the next reconciliation tells it so."""
        free = [each for each in self._free(pod.id, resource) if each in self._unheld(resource)]
        if (
            pod.id == wrong.id
            or not free
            or not {pod.id, wrong.id} <= self.live.keys()
            or (pod.id, "c0", resource) in self.kubelet
            or (wrong.id, "c0", resource) in self.kubelet
        ):
            return
        held = data.draw(st.frozensets(st.sampled_from(free), min_size=1, max_size=3))
        self.kubelet[pod.id, "c0", resource] = held
        guessed = hold(self.ledger, wrong.id, "c0", resource, held)
        entries = [each for each in self._entries() if is_listed or each.pod != wrong.id]
        found = self.ledger.reconcile(entries, live=set(self.live))
        assert found == [Correction(resource, held, guessed, ContainerRef(pod.id, "c0"))]
        self._agrees()

    def _unheld(self, resource: Resource) -> set[str]:
        """What not even an init container holds: the handing on is another rule's matter."""
        held = {
            each for (_, _, kind), some in self.kubelet.items() if kind is resource for each in some
        }
        return set(_PLACES) - held

    @rule(pod=pods)
    def end(self, pod: PodView) -> None:
        """A pod ends; the agent is told at once."""
        if pod.id in self.live:
            held = any(key[0] == pod.id for key in self.kubelet)
            self._forget(pod.id)
            assert self.ledger.release_pod(pod.id) is held

    @rule(pod=pods)
    def end_unnoticed(self, pod: PodView) -> None:
        """A pod ends, and only the next list tells."""
        self._forget(pod.id)
        self.ledger.reconcile(self._entries(), live=set(self.live))

    def _forget(self, pod: PodId) -> None:
        self.live.pop(pod, None)
        self.kubelet = {key: held for key, held in self.kubelet.items() if key[0] != pod}

    @rule()
    def reconcile(self) -> None:
        """A list of a kubelet that has all pods changes nothing that is right."""
        assert self.ledger.reconcile(self._entries(), live=set(self.live)) == []

    @rule(data=st.data())
    def reconcile_with_a_kubelet_that_has_just_restarted(self, data: st.DataObject) -> None:
        """It lists a part of the pods, and offers nothing that its checkpoint books (K11)."""
        entries = [each for each in self._entries() if data.draw(st.booleans())]
        offered = {(resource, each) for resource in Resource for each in self._unheld(resource)}
        assert self.ledger.reconcile(entries, live=set(self.live), offered=offered) == []

    @precondition(lambda self: not any(_CONTAINERS[key[1]] is INIT for key in self.kubelet))
    @rule()
    def restart_the_agent(self) -> None:
        """The kubelet's record alone gives the book back (init containers apart, K4)."""
        self.ledger = Ledger()
        self.ledger.reconcile(self._entries(), live=set(self.live))

    @precondition(lambda self: not any(_CONTAINERS[key[1]] is INIT for key in self.kubelet))
    @rule()
    def restart_the_agent_while_the_api_is_away(self) -> None:
        """Pods are booked by name alone and get their UID later."""
        if len({pod.key for pod in self.live}) < len(self.live):
            return  # two of a name cannot be told apart by name
        self.ledger = Ledger()
        entries = self._entries()
        nameless = [identified(PodId(*each.pod.key, ""), each.listed) for each in entries]
        self.ledger.reconcile(nameless)
        self.ledger.check()
        self.ledger.reconcile(entries, live=set(self.live))

    @invariant()
    def _agrees(self) -> None:
        self.ledger.check()
        booked = {
            (ref.pod, ref.container, resource): held.ids
            for ref, _, holdings in self.ledger.refs()
            for resource, held in holdings.items()
        }
        assert booked == self.kubelet

    @invariant()
    def _counts_what_is_held(self) -> None:
        for resource in Resource:
            assert self.ledger.held(resource) == set(_PLACES) - self._unheld(resource)

    @invariant()
    def _tells_what_is_within_reach(self) -> None:
        for pod in [*self.live, pod_id("stranger")]:
            for resource in Resource:
                within = [
                    each
                    for each in _PLACES
                    if not self.ledger.taken(resource, each, but_reusable_by=pod)
                ]
                mine = pod in self.live
                assert within == (
                    self._free(pod, resource)
                    if mine
                    else [each for each in _PLACES if each in self._unheld(resource)]
                )


TestKubeletAndLedger = KubeletAndLedger.TestCase
TestKubeletAndLedger.settings = settings(patient, max_examples=40, stateful_step_count=40)


@pytest.mark.parametrize("how", ["offered", "named"])
def test_a_kubelet_that_serves_an_init_container_once_more_offers_what_it_had(how: str) -> None:
    """It died before it wrote that down; List never shows ordinary init containers (K4)."""
    pod = view("p", container("i0", kind=INIT), container("c0"))
    ref = ContainerRef(pod.id, "i0")
    cores, blocks = ids("GPU-0", range(5)), ids("GPU-0", range(2))
    ledger = Ledger()
    ledger.record(ref, INIT, CORE, Holding(cores, Evidence.WITNESS))
    ledger.record(ref, INIT, MEMORY, Holding(blocks, Evidence.WITNESS))
    free = frozenset((CORE, each) for each in cores)
    none: frozenset[tuple[Resource, str]] = frozenset()
    ledger.reconcile(
        [identified(pod, listed("p", c0=None))],
        live={pod.id},
        offered=free if how == "offered" else none,
        named=free if how == "named" else none,
    )
    # Named places may be its own that are handed on (K7); of the offered resource nothing is left.
    assert (ledger.holding(ref, CORE) is None) is (how == "offered")
    assert ledger.holding(ref, MEMORY) is not None
