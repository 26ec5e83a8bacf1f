"""What the kubelet withholds, concluded from what it offers of one resource."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.offers import Offers, WithheldCounts
from agent.allocator.model.reconciliation import reconcile
from contract.allocation import Evidence
from contract.resource import Resource
from tests.agent.builders import (
    CORE,
    MAIN,
    MEMORY,
    device_table,
    every_id,
    hold,
    identified,
    ids,
    listed,
    patient,
    pod_id,
    view,
)

NODE = device_table(2)
P, Q = pod_id("p"), pod_id("q")


def _well(_uuid: str) -> str:
    return ""


def _heard(offers: Offers, ledger: Ledger, resource: Resource, without: Iterable[str] = ()) -> None:
    offered = frozenset(every_id(NODE, resource)) - ledger.held(resource) - frozenset(without)
    offers.offered(resource, offered, ledger, _well)


def _plain(kept: tuple[WithheldCounts, ...]) -> list[dict[Resource, dict[str, int]]]:
    return [{each: dict(count) for each, count in one.items() if count} for one in kept]


def _ended(*containers: tuple[frozenset[str], frozenset[str]]) -> tuple[Offers, Ledger]:
    """A kubelet that came anew after containers of these cores and blocks have ended."""
    offers, ledger = Offers(NODE), Ledger()
    for number, (cores, blocks) in enumerate(containers):
        for resource, held in ((CORE, cores), (MEMORY, blocks)):
            if held:
                hold(ledger, P, f"c{number}", resource, held)
                offers.answered(ledger)
    ledger.release_pod(P)
    offers.registered(ledger)
    return offers, ledger


def test_nothing_is_withheld_of_what_nobody_holds() -> None:
    offers, ledger = Offers(NODE), Ledger()
    hold(ledger, P, "c0", CORE, ids("GPU-0", range(30)))
    _heard(offers, ledger, CORE)
    assert offers.withheld(CORE, ledger) == ()


def test_what_was_not_offered_bounds_the_choice_when_the_other_is_asked_for() -> None:
    offers, ledger = Offers(NODE), Ledger()
    _heard(offers, ledger, CORE, without=ids("GPU-0", range(50)))
    _heard(offers, ledger, MEMORY)
    assert _plain(offers.withheld(MEMORY, ledger)) == [{CORE: {"GPU-0": 50}}]


def test_an_unhealthy_card_is_not_offered_and_that_says_nothing() -> None:
    offers, ledger = Offers(NODE), Ledger()
    offered = frozenset(ids("GPU-1", range(100)))
    offers.offered(CORE, offered, ledger, lambda uuid: "Xid 79" if uuid == "GPU-0" else "")
    assert offers.withheld(CORE, ledger) == ()


def test_an_ended_container_of_which_one_resource_is_withheld_still_has_the_other() -> None:
    offers, ledger = _ended((ids("GPU-0", range(60)), ids("GPU-0", range(4))))
    _heard(offers, ledger, MEMORY, without=ids("GPU-0", range(4)))
    assert _plain(offers.withheld(MEMORY, ledger)) == [{CORE: {"GPU-0": 60}, MEMORY: {"GPU-0": 4}}]


def test_an_ended_container_of_which_one_resource_is_offered_has_neither() -> None:
    offers, ledger = _ended((ids("GPU-0", range(60)), ids("GPU-0", range(4))))
    _heard(offers, ledger, MEMORY)
    assert offers.withheld(MEMORY, ledger) == ()


def test_of_a_container_without_memory_the_memory_says_nothing() -> None:
    """It is avoided first, then hoped for."""
    offers, ledger = _ended((ids("GPU-0", range(100)), frozenset()))
    _heard(offers, ledger, MEMORY)
    assert _plain(offers.withheld(MEMORY, ledger)) == [{CORE: {"GPU-0": 100}}, {}]
    _heard(offers, ledger, CORE)
    assert offers.withheld(CORE, ledger) == ()


def test_a_card_of_which_an_unknown_pod_has_memory_is_avoided_until_its_cores_are_offered() -> None:
    offers, ledger = Offers(NODE), Ledger()
    _heard(offers, ledger, MEMORY, without=ids("GPU-1", range(2)))
    assert _plain(offers.withheld(MEMORY, ledger)) == [
        {CORE: {"GPU-1": 100}, MEMORY: {"GPU-1": 2}},
        {MEMORY: {"GPU-1": 2}},
    ]
    _heard(offers, ledger, CORE)
    assert _plain(offers.withheld(MEMORY, ledger)) == [{MEMORY: {"GPU-1": 2}}]


def test_what_was_withheld_is_free_once_its_container_is_known_to_be_forgotten() -> None:
    offers, ledger = _ended((ids("GPU-0", range(60)), ids("GPU-0", range(4))))
    _heard(offers, ledger, CORE, without=ids("GPU-0", range(60)))
    _heard(offers, ledger, MEMORY)
    assert offers.withheld(MEMORY, ledger) == ()


def test_a_pod_that_this_kubelet_lists_is_no_riddle_when_it_leaves_and_its_memory_is_offered() -> (
    None
):
    offers, ledger = Offers(NODE), Ledger()
    both = {CORE: ids("GPU-0", range(60)), MEMORY: ids("GPU-0", range(4))}
    for resource, held in both.items():
        hold(ledger, P, "c0", resource, held)
    offers.registered(ledger)
    reconcile(ledger, [identified(view("p"), listed("p", c0=both))], live={P})
    _heard(offers, ledger, MEMORY)
    reconcile(ledger, [], live=set())
    _heard(offers, ledger, MEMORY)
    assert offers.withheld(MEMORY, ledger) == ()


def _rejected(cores: frozenset[str], blocks: frozenset[str]) -> tuple[Offers, Ledger]:
    """A pod was answered all it asked for, in this order, and is listed no more."""
    offers, ledger = Offers(NODE), Ledger()
    for resource, held in ((CORE, cores), (MEMORY, blocks)):
        if held:
            _heard(offers, ledger, resource)
            hold(ledger, P, "c0", resource, held)
            offers.answered(ledger)
    ledger.release_pod(P)
    return offers, ledger


def test_what_a_rejected_pod_had_is_withheld_until_one_of_it_is_offered() -> None:
    cores, blocks = ids("GPU-0", range(60)), ids("GPU-0", range(4))
    offers, ledger = _rejected(cores, blocks)
    for _ in range(2):
        _heard(offers, ledger, MEMORY, without=blocks)
        assert _plain(offers.withheld(MEMORY, ledger)) == [
            {CORE: {"GPU-0": 60}, MEMORY: {"GPU-0": 4}}
        ]
    _heard(offers, ledger, MEMORY)
    assert offers.withheld(MEMORY, ledger) == ()


def test_what_a_rejected_pod_without_memory_had_is_avoided_until_it_is_offered() -> None:
    offers, ledger = _rejected(ids("GPU-0", range(100)), frozenset())
    _heard(offers, ledger, MEMORY)
    assert _plain(offers.withheld(MEMORY, ledger)) == [{CORE: {"GPU-0": 100}}, {}]
    _heard(offers, ledger, CORE)
    assert offers.withheld(CORE, ledger) == ()


def test_what_a_rejected_pod_had_is_withheld_while_the_ledger_still_has_it() -> None:
    """A pod that is over and still in the ledger counts as free elsewhere."""
    offers, ledger = Offers(NODE), Ledger()
    both = {CORE: ids("GPU-0", range(60)), MEMORY: ids("GPU-0", range(4))}
    for resource, held in both.items():
        ledger.assign(
            ContainerRef(P, "c0"), MAIN, resource, Holding(held, Evidence.WITNESS, answered=True)
        )
        offers.answered(ledger)
    reconcile(ledger, [], live={P})
    assert ledger.no_longer_listed(P)
    _heard(offers, ledger, MEMORY)
    assert _plain(offers.withheld(MEMORY, ledger)) == [{CORE: {"GPU-0": 60}, MEMORY: {"GPU-0": 4}}]


def test_what_a_rejected_pod_had_is_not_withheld_once_another_holds_it() -> None:
    cores, blocks = ids("GPU-0", range(60)), ids("GPU-0", range(4))
    offers, ledger = _rejected(cores, blocks)
    hold(ledger, Q, "c0", MEMORY, blocks)
    _heard(offers, ledger, MEMORY)
    assert offers.withheld(MEMORY, ledger) == ()


# --- who is over ----------------------------------------------------------------------


def test_a_pod_that_was_answered_and_is_listed_no_more_is_over_until_it_is_listed() -> None:
    ledger = Ledger()
    ledger.assign(
        ContainerRef(P, "c0"),
        MAIN,
        CORE,
        Holding(ids("GPU-0", range(5)), Evidence.WITNESS, answered=True),
    )
    hold(ledger, Q, "c0", CORE, ids("GPU-1", range(5)))
    assert not ledger.no_longer_listed(P)
    reconcile(ledger, [], live={P, Q})
    assert (ledger.no_longer_listed(P), ledger.no_longer_listed(Q)) == (True, False)
    assert ledger.unlisted == {P, Q}
    ledger.new_kubelet()
    assert not ledger.no_longer_listed(P)
    assert ledger.unlisted == frozenset()


@patient
@given(st.data())
def test_whatever_is_offered_what_is_withheld_is_neither_offered_nor_held(
    data: st.DataObject,
) -> None:
    offers, ledger = Offers(NODE), Ledger()
    some = {each: st.frozensets(st.sampled_from(every_id(NODE, each))) for each in Resource}
    for _ in range(data.draw(st.integers(1, 8))):
        resource = data.draw(st.sampled_from(Resource))
        match data.draw(st.sampled_from(["answer", "end", "register", "hear"])):
            case "answer":
                held = data.draw(some[resource]) - ledger.held(resource)
                if held:
                    hold(ledger, P, f"c{len(ledger.owners)}", resource, held)
                    offers.answered(ledger)
            case "end":
                ledger.release_pod(P)
            case "register":
                offers.registered(ledger)
            case _:
                offered = data.draw(some[resource])
                offers.offered(resource, offered, ledger, _well)
                beyond = {
                    card: len(places - offered - ledger.held(resource))
                    for card, places in NODE.by_card(resource).items()
                }
                for kept in offers.withheld(resource, ledger):
                    assert kept[resource] == {card: n for card, n in beyond.items() if n}
                    other = NODE.by_card(resource.other)
                    for card, count in kept[resource.other].items():
                        assert count <= len(other[card] - ledger.held(resource.other))
