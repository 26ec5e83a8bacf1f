"""The book of held places, by example and against a model that says the rules in sets."""

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


def test_an_empty_book_knows_nothing() -> None:
    ledger = Ledger()
    assert ledger.holding(ContainerRef(P, "c0"), CORE) is None
    assert ledger.find(CORE, A) == []
    assert ledger.find(CORE, frozenset()) == []
    assert ledger.pod_refs(P) == []
    assert not ledger.release_pod(P)
    ledger.release_container(ContainerRef(P, "c0"))
    assert not ledger.taken(CORE, ONE, but_reusable_by=P)
    assert list(ledger.refs()) == []
    assert not ledger.owners
    ledger.check()


def test_only_exactly_the_same_ids_are_found() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    assert ledger.find(CORE, A | B) == []
    assert ledger.find(CORE, frozenset({ONE})) == []
    assert ledger.find(MEMORY, A) == []


def test_recording_again_takes_the_place_of_what_was_held() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c0", CORE, B)
    assert _book(ledger) == {("u-p", "c0", CORE): B}
    assert (CORE, ONE) not in ledger.owners
    ledger.check()


def test_releasing_a_container_frees_its_places_and_no_others() -> None:
    ledger = Ledger()
    first = hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c0", MEMORY, A)
    hold(ledger, P, "c1", CORE, B)
    ledger.release_container(first)
    assert _book(ledger) == {("u-p", "c1", CORE): B}
    ledger.check()


def test_releasing_a_pod_frees_all_its_containers() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c1", CORE, B)
    hold(ledger, Q, "c0", CORE, C)
    assert ledger.release_pod(P)
    assert not ledger.release_pod(P)
    assert _book(ledger) == {("u-q", "c0", CORE): C}
    ledger.check()


# --- K7: what init containers leave --------------------------------------------------


def test_places_of_an_init_container_are_within_reach_of_its_own_pod_alone() -> None:
    ledger = Ledger()
    hold(ledger, P, "init", CORE, A, kind=INIT)
    assert not ledger.taken(CORE, ONE, but_reusable_by=P)
    assert ledger.taken(CORE, ONE, but_reusable_by=Q)
    assert not ledger.taken(MEMORY, ONE, but_reusable_by=Q)


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


def test_a_place_leaves_its_pod_with_the_last_container_that_holds_it() -> None:
    ledger = Ledger()
    init = hold(ledger, P, "init", CORE, A | B, kind=INIT)
    later = hold(ledger, P, "c0", CORE, A)
    ledger.release_container(init)
    assert set(ledger.owners) == {(CORE, each) for each in A}
    ledger.release_container(later)
    assert not ledger.owners
    ledger.check()


# --- the invariants ------------------------------------------------------------------


def test_a_place_of_two_containers_is_told() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c1", CORE, A)
    with pytest.raises(
        AssertionError, match=r"is default/p container c0's and default/p container c1's"
    ):
        ledger.check()


def test_a_place_of_two_pods_is_told() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, Q, "c0", CORE, A)
    with pytest.raises(AssertionError, match=r"is default/q's and default/p container c0's"):
        ledger.check()


def test_an_owner_that_holds_nothing_is_told() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    ledger._owners[CORE, "GPU-9::9"] = P
    with pytest.raises(AssertionError, match="an owner without a holding"):
        ledger.check()


# --- reconciling ---------------------------------------------------------------------


def _reconcile(ledger: Ledger, *entries: MatchedPod, **given: object) -> list[Correction]:
    found = ledger.reconcile(entries, **given)  # type: ignore[arg-type] # as reconcile takes them
    ledger.check()
    return found


def test_an_empty_book_is_rebuilt_from_the_kubelets_record() -> None:
    ledger = Ledger()
    pod = view("p")
    assert _reconcile(ledger, identified(pod, listed("p", c0={CORE: A, MEMORY: B}, c1=None))) == []
    assert _book(ledger) == {("u-p", "c0", CORE): A, ("u-p", "c0", MEMORY): B}
    assert ledger.holding(ContainerRef(P, "c0"), CORE) == Holding(A, Evidence.RECORD, proven=True)


def test_an_empty_set_of_devices_is_no_holding() -> None:
    ledger = Ledger()
    _reconcile(ledger, identified(view("p"), listed("p", c0={CORE: frozenset()})))
    assert _book(ledger) == {}


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


def test_what_a_listed_pod_does_not_show_it_does_not_hold() -> None:
    """An Allocate whose container was then refused by another plugin."""
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c0", MEMORY, B)
    _reconcile(ledger, identified(view("p"), listed("p", c0={CORE: A})), live={P})
    assert _book(ledger) == {("u-p", "c0", CORE): A}


def test_init_containers_of_a_listed_pod_stay_booked_though_list_never_shows_them() -> None:
    ledger = Ledger()
    hold(ledger, P, "init", CORE, A, kind=INIT)
    _reconcile(ledger, identified(view("p"), listed("p", c0=None)))
    assert _book(ledger) == {("u-p", "init", CORE): A}


def test_a_pod_that_is_neither_listed_nor_live_is_forgotten_with_its_init_containers() -> None:
    ledger = Ledger()
    hold(ledger, P, "init", CORE, A, kind=INIT)
    hold(ledger, P, "c0", CORE, A)
    _reconcile(ledger, live={Q})
    assert _book(ledger) == {}


def test_a_live_pod_that_a_restarted_kubelet_has_not_listed_yet_stays_booked() -> None:
    """K11: the kubelet's checkpoint still books the devices of pods it has not come to."""
    ledger = Ledger()
    hold(ledger, P, "init", CORE, B, kind=INIT)
    hold(ledger, P, "c0", CORE, A)
    _reconcile(ledger, identified(view("q"), listed("q", c0={CORE: C})), live={P, Q})
    assert _book(ledger) == {
        ("u-p", "c0", CORE): A,
        ("u-p", "init", CORE): B,
        ("u-q", "c0", CORE): C,
    }


def test_a_live_pod_whose_places_the_kubelet_offers_has_been_forgotten_by_the_kubelet() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c0", MEMORY, A)
    hold(ledger, Q, "c0", CORE, B)
    _reconcile(ledger, live={P, Q}, offered={(CORE, ONE), (CORE, "GPU-1::50")})
    assert _book(ledger) == {("u-q", "c0", CORE): B}


def test_a_listed_pods_places_stay_booked_though_the_kubelet_offers_them() -> None:
    """K15: while an Allocate is in flight the kubelet can forget that its IDs are taken."""
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    entry = identified(view("p"), listed("p", c0={CORE: A}))
    _reconcile(ledger, entry, live={P}, offered={(CORE, ONE)})
    assert _book(ledger) == {("u-p", "c0", CORE): A}


def test_a_finished_pod_that_is_not_shown_with_devices_is_forgotten() -> None:
    """K8: a rejected pod may be listed as long as the API server holds it, without devices."""
    ledger = Ledger()
    hold(ledger, P, "init", CORE, A, kind=INIT)
    hold(ledger, P, "c0", CORE, B)
    _reconcile(ledger, identified(view("p"), listed("p", c0=None)), finished={P}, live={P})
    assert _book(ledger) == {}


# --- corrections ---------------------------------------------------------------------


def test_a_wrong_guess_is_corrected_and_told() -> None:
    ledger = Ledger()
    guessed = hold(ledger, P, "c0", CORE, A, evidence=Evidence.ORDER)
    entries = [
        identified(view("p"), listed("p", c0=None)),
        identified(view("q"), listed("q", c0={CORE: A})),
    ]
    assert _reconcile(ledger, *entries) == [Correction(CORE, A, guessed, ContainerRef(Q, "c0"))]
    assert _book(ledger) == {("u-q", "c0", CORE): A}


def test_two_guesses_the_wrong_way_round_are_both_corrected() -> None:
    ledger = Ledger()
    one, other = hold(ledger, P, "c0", CORE, A), hold(ledger, Q, "c0", CORE, B)
    entries = [
        identified(view("p"), listed("p", c0={CORE: B})),
        identified(view("q"), listed("q", c0={CORE: A})),
    ]
    assert _reconcile(ledger, *entries) == [
        Correction(CORE, B, other, one),
        Correction(CORE, A, one, other),
    ]
    assert _book(ledger) == {("u-p", "c0", CORE): B, ("u-q", "c0", CORE): A}


def test_a_wrong_container_of_the_right_pod_is_corrected() -> None:
    ledger = Ledger()
    guessed = hold(ledger, P, "c0", CORE, A)
    entry = identified(view("p"), listed("p", c0=None, c1={CORE: A}))
    assert _reconcile(ledger, entry) == [Correction(CORE, A, guessed, ContainerRef(P, "c1"))]
    assert _book(ledger) == {("u-p", "c1", CORE): A}


def test_places_handed_on_by_an_init_container_are_no_correction() -> None:
    ledger = Ledger()
    hold(ledger, P, "init", CORE, A, kind=INIT)
    assert _reconcile(ledger, identified(view("p"), listed("p", c0={CORE: A}))) == []
    assert _book(ledger) == {("u-p", "init", CORE): A, ("u-p", "c0", CORE): A}


def test_a_guess_for_a_pod_that_is_not_listed_yet_gives_way_to_the_record() -> None:
    """Guessed while there was no witness: the pod is live and not admitted."""
    ledger = Ledger()
    guessed = hold(ledger, P, "c0", CORE, A, evidence=Evidence.ORDER)
    hold(ledger, P, "c1", CORE, B)
    entry = identified(view("q"), listed("q", c0={CORE: A}))
    assert _reconcile(ledger, entry, live={P, Q}) == [
        Correction(CORE, A, guessed, ContainerRef(Q, "c0"))
    ]
    assert _book(ledger) == {("u-q", "c0", CORE): A, ("u-p", "c1", CORE): B}


def test_a_pod_forgets_only_what_of_its_places_the_kubelet_offers_container_by_container() -> None:
    """A kubelet that died before its checkpoint was written books the earlier containers."""
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    hold(ledger, P, "c1", CORE, B)
    _reconcile(ledger, live={P}, offered={(CORE, each) for each in B})
    assert _book(ledger) == {("u-p", "c0", CORE): A}


def test_a_container_that_is_listed_and_booked_as_init_is_looked_at_each_time() -> None:
    """A name the book has as an init container, shown by List: never taken for granted."""
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A, kind=INIT)
    entry = identified(view("p"), listed("p", c0={CORE: A}))
    for _ in range(2):
        _reconcile(ledger, entry)
    assert _book(ledger) == {("u-p", "c0", CORE): A}


def test_places_that_overlap_a_wrong_guess_only_in_part_end_with_whom_the_record_shows() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A | B)
    entries = [
        identified(view("p"), listed("p", c0={CORE: A})),
        identified(view("q"), listed("q", c0={CORE: B})),
    ]
    _reconcile(ledger, *entries)
    assert _book(ledger) == {("u-p", "c0", CORE): A, ("u-q", "c0", CORE): B}


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
TestKubeletAndLedger.settings = settings(patient, max_examples=100, stateful_step_count=40)


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
