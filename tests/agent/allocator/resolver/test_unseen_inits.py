"""What init containers hold whose pod the API has not told of; the facts are K4 and K7."""

from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.allocator.model.pod_view import PodId
from agent.allocator.resolver.resolve import Ask
from agent.allocator.resolver.unseen_inits import asking_unseen, keep_unseen, name_unseen, unseen
from contract.allocation import Evidence
from contract.demand import ContainerDemand, Demand
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    container,
    hold,
    identified,
    ids,
    listed,
    pod_id,
    view,
)
from tests.agent.ledger_rules import check

POD = pod_id("p", "")
CORES, BLOCKS = ids("GPU-0", range(20)), ids("GPU-0", range(4))
NOTHING = identified(POD, listed("p", c0=None))
FIRST = ContainerRef(POD, "init container 1")


def guessed(*, evidence: Evidence = Evidence.ORDER) -> Ledger:
    """Cores that were answered for the first container that List shows."""
    ledger = Ledger()
    hold(ledger, POD, "c0", CORE, CORES, evidence=evidence)
    return ledger


def test_what_was_answered_and_is_not_shown_is_an_init_containers() -> None:
    ledger = guessed()
    keep_unseen(ledger, NOTHING, frozenset())
    assert ledger.pod_refs(POD) == [FIRST]
    assert ledger.kind(FIRST) is INIT
    check(ledger)


def test_what_is_shown_or_offered_again_or_known_is_not() -> None:
    for ledger, each, offered in (
        (guessed(), identified(POD, listed("p", c0={CORE: CORES})), frozenset()),
        (guessed(), identified(POD, listed("p", c0=None, c1={CORE: CORES})), frozenset()),
        (guessed(), NOTHING, frozenset({(CORE, "GPU-0::3")})),
        (guessed(evidence=Evidence.WITNESS), NOTHING, frozenset()),
    ):
        keep_unseen(ledger, each, offered)
        assert unseen(ledger, POD) == []


def test_its_second_resource_is_asked_for_next() -> None:
    ledger = guessed()
    keep_unseen(ledger, NOTHING, frozenset())
    assert asking_unseen(ledger, NOTHING, Ask(MEMORY, 4)) == ContainerDemand(
        FIRST.container, INIT, 0, Demand(20, 4)
    )
    assert asking_unseen(ledger, NOTHING, Ask(CORE, 4)) is None
    begun = identified(POD, listed("p", c0={CORE: ids("GPU-1", range(5))}))
    assert asking_unseen(ledger, begun, Ask(MEMORY, 4)) is None
    hold(ledger, POD, FIRST.container, MEMORY, BLOCKS, kind=INIT)
    assert asking_unseen(ledger, NOTHING, Ask(MEMORY, 4)) is None


def test_the_next_init_container_is_another_that_may_hold_the_same_places() -> None:
    ledger = guessed()
    keep_unseen(ledger, NOTHING, frozenset())
    hold(ledger, POD, FIRST.container, MEMORY, BLOCKS, kind=INIT)
    hold(ledger, POD, "c0", CORE, CORES, evidence=Evidence.ORDER)
    keep_unseen(ledger, NOTHING, frozenset())
    assert [each.container for each in unseen(ledger, POD)] == [
        "init container 1",
        "init container 2",
    ]
    check(ledger)


def test_they_get_their_names_from_the_spec_and_lose_what_it_does_not_ask_for() -> None:
    for cores, held in ((20, [ContainerRef(PodId(*POD.key, "u-p"), "i0")]), (10, [])):
        ledger = guessed()
        keep_unseen(ledger, NOTHING, frozenset())
        pod = view("p", container("i0", cores, 4, kind=INIT), container("c0", 5, 1))
        ledger.adopt_names({pod.id})
        name_unseen(ledger, pod)
        assert ledger.pod_refs(pod.id) == held
        check(ledger)
