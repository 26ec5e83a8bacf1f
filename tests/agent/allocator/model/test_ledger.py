"""The held places; over any history it is tested in ``test_ledger_kubelet``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import PodId
from agent.allocator.model.podresources import MatchedPod
from agent.allocator.model.reconciliation import reconcile
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
from tests.agent.ledger_rules import check

P, Q = pod_id("p"), pod_id("q")
A, B, C = ids("GPU-0", range(2)), ids("GPU-0", range(2, 4)), ids("GPU-1", range(2))
NONE: frozenset[str] = frozenset()
ONE = "GPU-0::0"


def _held(ledger: Ledger) -> dict[tuple[str, str, Resource], frozenset[str]]:
    """Everything held, short."""
    return {
        (ref.pod.uid, ref.container, resource): held.ids
        for ref, _, holdings in ledger.refs()
        for resource, held in holdings.items()
    }


# --- recording and releasing ---------------------------------------------------------


def test_what_is_assigned_is_found_again() -> None:
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
    check(ledger)


def test_only_exactly_the_same_ids_are_found() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, A)
    assert ledger.find(CORE, A | B) == []
    assert ledger.find(CORE, frozenset({ONE})) == []
    assert ledger.find(MEMORY, A) == []


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
    check(ledger)
    ledger.release_container(later)
    assert ledger.owners[CORE, ONE] == P
    assert not ledger.taken(CORE, ONE, but_reusable_by=P)
    check(ledger)


# --- reconciling ---------------------------------------------------------------------


def _reconcile(ledger: Ledger, *entries: MatchedPod, **given: object) -> list[Correction]:
    found = reconcile(ledger, entries, **given)  # type: ignore[arg-type] # as reconcile takes them
    check(ledger)
    return found


P_C0, P_C1, P_INIT = (ContainerRef(P, name) for name in ("c0", "c1", "init"))
Q_C0 = ContainerRef(Q, "c0")


@dataclass(frozen=True)
class Reconciled:
    """What was held, what a list shows of the cores of p and q, and what is held then.

    Attributes:
        before: containers and their cores; ``init`` is an ordinary init container.
        shown: pod -> container -> cores; a pod that is not in it is not listed.
        after: as *before*; the same unless told.
        given: what else ``reconcile`` is given.
        corrected: cores, who was guessed to have them, who has them.
    """

    before: Mapping[ContainerRef, frozenset[str]]
    shown: Mapping[str, Mapping[str, frozenset[str]]]
    after: Mapping[ContainerRef, frozenset[str]] | None = None
    given: Mapping[str, object] = field(default_factory=dict)
    corrected: Sequence[tuple[frozenset[str], ContainerRef, ContainerRef]] = ()


BOTH_LIVE = {"live": {P, Q}}
RECONCILED = {
    "an empty ledger is rebuilt": Reconciled({}, {"p": {"c0": A, "c1": NONE}}, {P_C0: A}),
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
    "listed, and held as an init container": Reconciled({P_INIT: A}, {"p": {"init": A}}),
}


@pytest.mark.parametrize("case", RECONCILED.values(), ids=RECONCILED)
def test_the_ledger_is_made_equal_to_the_kubelets_record(case: Reconciled) -> None:
    ledger = Ledger()
    for ref, held in case.before.items():
        hold(ledger, ref.pod, ref.container, CORE, held, kind=INIT if ref == P_INIT else MAIN)
    entries = [
        identified(view(name), listed(name, **{each: {CORE: held} for each, held in shown.items()}))
        for name, shown in case.shown.items()
    ]
    assert _reconcile(ledger, *entries, **case.given) == [
        Correction(CORE, *each) for each in case.corrected
    ]
    after = case.before if case.after is None else case.after
    assert {ref: held[CORE].ids for ref, _, held in ledger.refs()} == after
    for ref, held in after.items():
        if ref.container in case.shown.get(ref.pod.name, {}) and case.before.get(ref) != held:
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
    assert _held(ledger) == {("u-p", "c0", CORE): A}
    for _ in range(2):
        _reconcile(ledger, entry)
    hold(ledger, P, "c1", CORE, B)
    _reconcile(ledger, entry)
    assert _held(ledger) == {("u-p", "c0", CORE): A}


# --- UIDs told later -----------------------------------------------------------------


def test_a_pod_known_by_name_alone_gets_its_uid_once_the_api_has_told_it() -> None:
    ledger = Ledger()
    entry = listed("p", c0={CORE: A, MEMORY: B})
    _reconcile(ledger, identified(pod_id("p", ""), entry))
    assert _held(ledger) == {("", "c0", CORE): A, ("", "c0", MEMORY): B}
    assert _reconcile(ledger, identified(view("p"), entry), live={P}) == []
    assert _held(ledger) == {("u-p", "c0", CORE): A, ("u-p", "c0", MEMORY): B}


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
    assert _held(ledger) == {("", "c0", CORE): A}


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
def test_no_list_however_contradictory_breaks_the_held(
    lists: list[tuple[list[MatchedPod], frozenset[PodId], frozenset[PodId]]],
    first: list[tuple[Resource, frozenset[str]]],
) -> None:
    """Not even one that shows a place with two containers: the last one has it."""
    ledger = Ledger()
    for resource, held in first:
        if held:
            hold(ledger, pod_id("p", "u1"), "init", resource, held, kind=INIT)
    for entries, live, finished in lists:
        reconcile(ledger, entries, live=live, finished=finished)
        check(ledger)
        for ref, _, holdings in ledger.refs():
            assert holdings
            assert ref in ledger.pod_refs(ref.pod)


@pytest.mark.parametrize("how", ["offered", "named"])
def test_a_kubelet_that_serves_an_init_container_once_more_offers_what_it_had(how: str) -> None:
    """It died before it wrote that down; List never shows ordinary init containers (K4)."""
    pod = view("p", container("i0", kind=INIT), container("c0"))
    ref = ContainerRef(pod.id, "i0")
    cores, blocks = ids("GPU-0", range(5)), ids("GPU-0", range(2))
    ledger = Ledger()
    ledger.assign(ref, INIT, CORE, Holding(cores, Evidence.WITNESS))
    ledger.assign(ref, INIT, MEMORY, Holding(blocks, Evidence.WITNESS))
    free = frozenset((CORE, each) for each in cores)
    none: frozenset[tuple[Resource, str]] = frozenset()
    reconcile(
        ledger,
        [identified(pod, listed("p", c0=None))],
        live={pod.id},
        offered=free if how == "offered" else none,
        named=free if how == "named" else none,
    )
    # Named places may be its own that are handed on (K7); of the offered resource nothing is left.
    assert (ledger.holding(ref, CORE) is None) is (how == "offered")
    assert ledger.holding(ref, MEMORY) is not None
