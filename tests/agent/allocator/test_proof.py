"""Who holds these places by the kubelet's record, and may it start."""

from collections.abc import Mapping, Sequence

import pytest

from agent.allocator.model.ledger import ContainerRef, Correction, Holding, Ledger
from agent.allocator.model.pod_view import Key, PodId, PodView
from agent.allocator.model.podresources import ListedPod
from agent.allocator.proof import (
    apply_record,
    assign_listed,
    check_start,
    holder,
    proven,
    why_unproven,
)
from agent.errors import GrantError
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    container,
    device_table,
    hold,
    identified,
    ids,
    listed,
    pod_id,
    snapshot,
    view,
)
from tests.agent.ledger_rules import check

P, Q = pod_id("p"), pod_id("q")
NODE = device_table()
CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
OTHERS = ids("GPU-1", range(50))
HELD = {CORE: CORES, MEMORY: BLOCKS}
PROVEN = {resource: Holding(held, Evidence.RECORD, proven=True) for resource, held in HELD.items()}


def _holdings(ledger: Ledger) -> dict[ContainerRef, Mapping[Resource, Holding]]:
    return {ref: dict(holdings) for ref, _, holdings in ledger.refs()}


# --- proven before --------------------------------------------------------------------


def test_what_the_record_has_shown_once_is_proven() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, CORES)
    assert proven(ledger, CORE, CORES) is None
    ledger.prove(ref, CORE)
    assert proven(ledger, CORE, CORES) == ref
    assert proven(ledger, MEMORY, CORES) is None
    assert proven(ledger, CORE, CORES - {"GPU-0::0"}) is None


def test_of_places_handed_on_the_container_that_is_proven_is_given() -> None:
    """The init container held the same ones before it, and is never shown (K4, K7)."""
    ledger = Ledger()
    hold(ledger, P, "a-init", CORE, CORES, kind=INIT)
    ref = hold(ledger, P, "c0", CORE, CORES)
    ledger.prove(ref, CORE)
    assert proven(ledger, CORE, CORES) == ref


# --- who holds them -------------------------------------------------------------------


def _holder(
    *entries: ListedPod,
    views: Sequence[PodView] = (),
    owners: Mapping[tuple[Resource, str], PodId] | None = None,
) -> tuple[ContainerRef, Mapping[Resource, frozenset[str]]] | None:
    def views_of(key: Key) -> Sequence[PodView]:
        return [each for each in views if each.id.key == key]

    return holder(snapshot(*entries), CORE, CORES, views_of=views_of, owners=owners or {})


def test_the_container_that_holds_exactly_these_is_found_with_all_it_holds() -> None:
    entry = listed("p", c0={CORE: OTHERS}, c1=HELD, c2=None)
    assert _holder(listed("q", c0=None), entry, views=[view("p"), view("q")]) == (
        ContainerRef(P, "c1"),
        HELD,
    )


@pytest.mark.parametrize(
    "held",
    [{}, {CORE: CORES | OTHERS}, {CORE: CORES - {"GPU-0::7"}}, {MEMORY: CORES}],
    ids=["nothing", "more", "less", "of the other resource"],
)
def test_who_holds_others_is_not(held: Mapping[Resource, frozenset[str]]) -> None:
    assert _holder(listed("p", c0=held), views=[view("p")]) is None


def test_a_holder_of_which_the_api_has_not_told_is_known_by_its_name() -> None:
    assert _holder(listed("p", c0=HELD)) == (ContainerRef(pod_id("p", ""), "c0"), HELD)


def test_of_two_pods_of_a_name_the_one_they_were_given_to_is_meant() -> None:
    old, new = view("p", uid="old"), view("p", uid="new", at=1)
    shown = listed("p", c0={CORE: OTHERS}), listed("p", c0=HELD)
    for owner, other in ((old, new), (new, old)):
        owners = {(CORE, each): owner.id for each in CORES}
        owners |= {(CORE, each): other.id for each in OTHERS}
        for entries in (shown, shown[::-1]):
            found = _holder(*entries, views=[old, new], owners=owners)
            assert found == (ContainerRef(owner.id, "c0"), HELD)


# --- why not --------------------------------------------------------------------------


def test_why_nobody_was_shown_is_said() -> None:
    ledger = Ledger()
    main = hold(ledger, Q, "c0", CORE, OTHERS)
    init = hold(ledger, P, "i", CORE, CORES, kind=INIT)
    nobody = "the kubelet's record shows nobody holding exactly these"
    assert why_unproven(ledger, []) == nobody
    assert why_unproven(ledger, [main]) == nobody
    assert why_unproven(ledger, [init]) == (
        "ordinary init containers are not in the kubelet's record"
    )


# --- applying the record --------------------------------------------------------------


def test_a_right_guess_is_proven_and_known_by_the_record_from_then_on() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, CORES)
    hold(ledger, P, "c0", MEMORY, BLOCKS, evidence=Evidence.ORDER)
    assert apply_record(ledger, ref, HELD) == []
    assert _holdings(ledger) == {
        ref: {
            CORE: Holding(CORES, Evidence.WITNESS, proven=True),
            MEMORY: Holding(BLOCKS, Evidence.RECORD, proven=True),
        }
    }


def test_a_wrong_guess_is_given_back_and_assigned_to_the_holder() -> None:
    ledger = Ledger()
    guessed = hold(ledger, Q, "c0", CORE, CORES, evidence=Evidence.ORDER)
    hold(ledger, Q, "c0", MEMORY, BLOCKS, evidence=Evidence.ORDER)
    other = hold(ledger, Q, "c1", CORE, OTHERS)
    ref = ContainerRef(P, "c0")
    assert apply_record(ledger, ref, HELD) == [
        Correction(CORE, CORES, guessed, ref),
        Correction(MEMORY, BLOCKS, guessed, ref),
    ]
    assert _holdings(ledger) == {
        ref: PROVEN,
        other: {CORE: Holding(OTHERS, Evidence.WITNESS)},
    }
    check(ledger)


def test_a_wrong_guess_within_a_pod_is_corrected_too() -> None:
    ledger = Ledger()
    guessed = hold(ledger, P, "c1", CORE, CORES)
    assert apply_record(ledger, ContainerRef(P, "c0"), {CORE: CORES}) == [
        Correction(CORE, CORES, guessed, ContainerRef(P, "c0"))
    ]
    assert _holdings(ledger) == {ContainerRef(P, "c0"): {CORE: PROVEN[CORE]}}


def test_what_nobody_held_is_assigned() -> None:
    ledger = Ledger()
    assert apply_record(ledger, ContainerRef(P, "c0"), HELD) == []
    assert _holdings(ledger) == {ContainerRef(P, "c0"): PROVEN}


def test_what_an_init_container_handed_on_stays_its_own_too() -> None:
    ledger = Ledger()
    init = hold(ledger, P, "i", CORE, CORES, kind=INIT)
    assert apply_record(ledger, ContainerRef(P, "c0"), {CORE: CORES}) == []
    assert _holdings(ledger) == {
        init: {CORE: Holding(CORES, Evidence.WITNESS)},
        ContainerRef(P, "c0"): {CORE: PROVEN[CORE]},
    }
    check(ledger)


def test_an_init_container_of_another_pod_gives_way() -> None:
    ledger = Ledger()
    hold(ledger, Q, "i", CORE, CORES, kind=INIT)
    assert apply_record(ledger, ContainerRef(P, "c0"), {CORE: CORES}) == []
    assert _holdings(ledger) == {ContainerRef(P, "c0"): {CORE: PROVEN[CORE]}}
    check(ledger)


def test_who_holds_some_of_these_gives_way_uncounted() -> None:
    """What it holds else is for its own proof to say."""
    ledger = Ledger()
    hold(ledger, Q, "c0", CORE, CORES | OTHERS)
    assert apply_record(ledger, ContainerRef(P, "c0"), {CORE: CORES}) == []
    assert _holdings(ledger) == {ContainerRef(P, "c0"): {CORE: PROVEN[CORE]}}
    check(ledger)


# --- what the ledger lacks ---------------------------------------------------------------------


def test_what_nobody_holds_of_a_listed_pod_is_added() -> None:
    ledger = Ledger()
    kept = hold(ledger, P, "c1", CORE, OTHERS)
    entry = listed("p", c0=HELD, c1={CORE: ids("GPU-1", range(60))}, c2=None)
    assign_listed(ledger, identified(view("p"), entry))
    assert ledger.holding(kept, CORE) == Holding(OTHERS, Evidence.WITNESS)
    assert _holdings(ledger)[ContainerRef(P, "c0")] == PROVEN


def test_what_another_container_holds_is_not_added() -> None:
    """A call of the kubelet may have come since the kubelet's record was made."""
    ledger = Ledger()
    other = hold(ledger, Q, "c0", CORE, ids("GPU-0", range(49, 70)))
    assign_listed(ledger, identified(view("p"), listed("p", c0=HELD)))
    assert _holdings(ledger) == {
        other: {CORE: Holding(ids("GPU-0", range(49, 70)), Evidence.WITNESS)},
        ContainerRef(P, "c0"): {MEMORY: PROVEN[MEMORY]},
    }
    check(ledger)


# --- the veto -------------------------------------------------------------------------


def _vetoed(ledger: Ledger, ref: ContainerRef, pod: PodView | None) -> str:
    with pytest.raises(GrantError) as caught:
        check_start(ledger, NODE, ref, pod)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        (view("p"), "c0"),
        (view("p", container("c0", 50, 5)), "another"),
        (None, "c0"),
    ],
    ids=["as asked for", "a container unknown", "a pod unknown"],
)
def test_a_container_that_nothing_contradicts_starts(pod: PodView | None, name: str) -> None:
    ledger = Ledger()
    ref = hold(ledger, P, name, CORE, CORES)
    check_start(ledger, NODE, ref, pod)
    hold(ledger, P, name, MEMORY, BLOCKS)
    check_start(ledger, NODE, ref, pod)


def test_a_container_that_holds_another_number_than_it_asks_for_is_vetoed() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, CORES)
    assert _vetoed(ledger, ref, view("p", container("c0", 40, 4))) == (
        "50 places of core, but the container asks for 40"
    )
    hold(ledger, P, "c0", MEMORY, BLOCKS)
    assert _vetoed(ledger, ref, view("p", container("c0", 50, 5))) == (
        "4 places of memory, but the container asks for 5"
    )


@pytest.mark.parametrize("pod", [view("p"), None], ids=["known", "unknown"])
def test_a_container_whose_memory_is_elsewhere_is_vetoed(pod: PodView | None) -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, CORES)
    hold(ledger, P, "c0", MEMORY, ids("GPU-1", range(4)))
    assert _vetoed(ledger, ref, pod) == ("memory on GPU-1, but the container's cores are on GPU-0")
