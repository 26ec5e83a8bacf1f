"""What is reserved for one pod is not planned for another."""

from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodId
from agent.allocator.reservations import Reservation, Reservations
from agent.allocator.resolver.resolve import Resolution
from contract.allocation import Evidence
from contract.demand import ContainerKind
from contract.resource import Resource
from placement.search import Assignment, Plan
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import asks

ONE, OTHER = PodId("default", "one", "uid-1"), PodId("default", "other", "uid-2")
IDS = frozenset({"GPU-0::0", "GPU-0::1"})
PLAN: Plan = {"main": Assignment(("GPU-0",), {CORE: {"GPU-0": 2}, MEMORY: {"GPU-0": 4}})}


def resolved(pod: PodId, evidence: Evidence = Evidence.WITNESS) -> Resolution:
    return Resolution(pod, asks(2, 4), evidence)


def with_one(pod: PodId = ONE) -> Reservations:
    reservations = Reservations()
    reservations.reserve(CORE, IDS, Reservation(resolved(pod), None), PLAN)
    return reservations


def test_a_reservation_is_claimed_once_by_exactly_its_places() -> None:
    reservations = with_one()
    assert reservations.claim(MEMORY, IDS) is None
    assert reservations.claim(CORE, IDS - {"GPU-0::0"}) is None
    assert reservations.claim(CORE, IDS) == Reservation(resolved(ONE), None)
    assert reservations.claim(CORE, IDS) is None


def listing(*pods: PodId) -> Ledger:
    """A ledger on which *pods* hold nothing; the kubelet has come to them."""
    ledger = Ledger()
    ledger.note_listed(set(pods), set(pods))
    return ledger


def test_nothing_is_reserved_for_what_a_pod_has_got() -> None:
    reservations, ledger = with_one(), listing(ONE)
    for resource, count in ((CORE, 2), (MEMORY, 4)):
        ids = frozenset(f"GPU-0::{place}" for place in range(count))
        held = Holding(ids, Evidence.TICKET)
        ledger.assign(ContainerRef(ONE, "main"), ContainerKind.MAIN, resource, held)
    guess = resolved(OTHER, Evidence.ORDER)
    reserved = reservations.reserved(guess, live={ONE, OTHER}, ledger=ledger)
    assert reserved == {each: {} for each in Resource}


def test_what_is_planned_for_a_pod_is_reserved_while_the_next_one_is_only_guessed() -> None:
    reservations = with_one()
    guess = resolved(OTHER, Evidence.ORDER)
    reserved = reservations.reserved(guess, live={ONE, OTHER}, ledger=Ledger())
    assert reserved == {CORE: {"GPU-0": 2}, MEMORY: {"GPU-0": 4}}


def test_nothing_is_reserved_once_another_pod_is_known_to_be_asking() -> None:
    reservations, ledger = with_one(), listing(ONE, OTHER)
    reserved = reservations.reserved(resolved(OTHER), live={ONE, OTHER}, ledger=ledger)
    assert reserved == {each: {} for each in Resource}
    assert reservations.plan(ONE) is None


def test_nothing_is_reserved_for_a_pod_that_is_gone() -> None:
    guess = resolved(OTHER, Evidence.ORDER)
    assert with_one().reserved(guess, live={OTHER}, ledger=Ledger())[CORE] == {}


def test_a_pod_does_not_stand_in_its_own_way() -> None:
    reservations = with_one()
    reserved = reservations.reserved(resolved(ONE), live={ONE}, ledger=Ledger())
    assert reserved == {each: {} for each in Resource}
    assert reservations.plan(ONE) == PLAN


def test_the_oldest_of_very_many_reservations_is_forgotten() -> None:
    reservations = with_one()
    for number in range(64):
        pod = PodId("default", f"p{number}", f"u{number}")
        ids = frozenset({f"GPU-1::{number}"})
        reservations.reserve(CORE, ids, Reservation(resolved(pod), None), PLAN)
    assert reservations.plan(ONE) is None
    assert reservations.claim(CORE, IDS) is None


def test_a_new_kubelet_has_nothing_reserved_of_a_pod_that_holds_nothing() -> None:
    reservations = with_one()
    reservations.new_kubelet(Ledger())
    assert reservations.plan(ONE) is None
    assert reservations.claim(CORE, IDS) is None


def test_what_a_kubelet_left_half_admitted_is_reserved_until_the_next_one_comes_to_it() -> None:
    reservations, ledger = with_one(), listing(ONE)
    ledger.assign(
        ContainerRef(ONE, "init"), ContainerKind.INIT, CORE, Holding(IDS, Evidence.TICKET)
    )
    reservations.new_kubelet(ledger)
    ledger.new_kubelet()
    live = {ONE, OTHER}
    assert reservations.claim(CORE, IDS) is None
    assert reservations.plan(ONE) is None
    for _ in range(2):
        reserved = reservations.reserved(resolved(OTHER), live=live, ledger=ledger)
        assert reserved == {CORE: {"GPU-0": 2}, MEMORY: {"GPU-0": 4}}
    ledger.note_listed({ONE, OTHER}, live)
    assert reservations.reserved(resolved(OTHER), live=live, ledger=ledger)[CORE] == {}
    assert reservations.plan(ONE) is None


def test_a_pod_that_a_new_kubelet_has_come_to_is_planned_for_anew() -> None:
    reservations, ledger = with_one(), listing(ONE)
    ledger.assign(
        ContainerRef(ONE, "init"), ContainerKind.INIT, CORE, Holding(IDS, Evidence.TICKET)
    )
    reservations.new_kubelet(ledger)
    reservations.reserve(CORE, IDS, Reservation(resolved(ONE), None), PLAN)
    assert reservations.plan(ONE) == PLAN


def test_a_pod_that_was_rejected_is_planned_for_no_more() -> None:
    reservations = with_one()
    reservations.drop(ONE)
    reservations.drop(OTHER)
    assert reservations.plan(ONE) is None
