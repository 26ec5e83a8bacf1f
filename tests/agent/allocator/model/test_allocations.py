import pytest

from agent.allocator.model.allocations import allocations_of, grant_of, is_news, served_inits
from agent.allocator.model.grant import Grant, Share
from agent.allocator.model.ledger import ContainerRef, Ledger
from agent.errors import GrantError
from contract.allocation import Allocation, Evidence
from tests.agent.builders import (
    CORE,
    INIT,
    MAIN,
    MEMORY,
    SIDECAR,
    container,
    device_table,
    hold,
    ids,
    pod_id,
    view,
)

P = pod_id("p")
NODE = device_table()
CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
GOT = Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)


def _served(ledger: Ledger, name: str, evidence: Evidence = Evidence.WITNESS) -> None:
    hold(ledger, P, name, CORE, CORES, evidence=evidence)
    hold(ledger, P, name, MEMORY, BLOCKS, evidence=evidence)


def test_what_a_container_holds_is_translated() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, ids("GPU-1", range(100)) | ids("GPU-0", range(100)))
    assert grant_of(ledger, NODE, ref, CORE) == Grant(
        CORE, (Share("GPU-0", 100), Share("GPU-1", 100))
    )
    assert grant_of(ledger, NODE, ref, MEMORY) is None
    assert grant_of(ledger, NODE, ContainerRef(P, "c1"), CORE) is None


def test_what_makes_no_sense_is_refused() -> None:
    ledger = Ledger()
    ref = hold(ledger, P, "c0", CORE, ids("GPU-0", range(2)) | ids("GPU-1", range(3)))
    with pytest.raises(GrantError) as caught:
        grant_of(ledger, NODE, ref, CORE)
    assert str(caught.value) == ("a share of 5 cores is split over cards: 2 on GPU-0, 3 on GPU-1")


def test_a_pod_whose_containers_all_have_what_they_ask_for_is_complete() -> None:
    ledger = Ledger()
    _served(ledger, "c0")
    hold(ledger, P, "c1", CORE, ids("GPU-1", range(100)), evidence=Evidence.RECORD)
    pod = view("p", container("c0", 50, 4), container("c1", 100, 0))
    assert allocations_of(ledger, NODE, pod) == {
        "c0": GOT,
        "c1": Allocation(("GPU-1",), 100, 0, Evidence.RECORD),
    }


@pytest.mark.parametrize("missing", ["cores", "memory", "c1"])
def test_a_pod_is_not_complete_while_something_is_missing(missing: str) -> None:
    ledger = Ledger()
    if missing != "cores":
        hold(ledger, P, "c0", CORE, CORES)
    if missing != "memory":
        hold(ledger, P, "c0", MEMORY, BLOCKS)
    more = [container("c1")] if missing == "c1" else []
    assert allocations_of(ledger, NODE, view("p", container("c0"), *more)) is None


def test_the_cards_stand_in_the_order_the_container_sees_them() -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, ids("GPU-1", range(100)) | ids("GPU-0", range(100)))
    hold(ledger, P, "c0", MEMORY, ids("GPU-1", range(2)) | ids("GPU-0", range(2)))
    found = allocations_of(ledger, NODE, view("p", container("c0", 200, 4)))
    assert found == {"c0": Allocation(("GPU-0", "GPU-1"), 200, 4, Evidence.WITNESS)}


@pytest.mark.parametrize(
    ("cores", "memory", "told"),
    [
        (Evidence.TICKET, Evidence.RECORD, Evidence.RECORD),
        (Evidence.RECORD, Evidence.WITNESS, Evidence.WITNESS),
        (Evidence.ORDER, Evidence.WITNESS, Evidence.ORDER),
        (Evidence.TICKET, Evidence.TICKET, Evidence.TICKET),
    ],
)
def test_the_weaker_evidence_of_the_two_is_told(
    cores: Evidence, memory: Evidence, told: Evidence
) -> None:
    ledger = Ledger()
    hold(ledger, P, "c0", CORE, CORES, evidence=cores)
    hold(ledger, P, "c0", MEMORY, BLOCKS, evidence=memory)
    found = allocations_of(ledger, NODE, view("p", container("c0")))
    assert found is not None
    assert found["c0"].evidence is told


def test_what_the_ledger_does_not_know_is_taken_from_the_pods_own_record() -> None:
    ledger = Ledger()
    _served(ledger, "c0")
    written = {
        "init": Allocation(("GPU-1",), 10, 1, Evidence.TICKET),
        "c0": Allocation(("GPU-1",), 50, 4, Evidence.TICKET),
    }
    pod = view("p", container("init", 10, 1, kind=INIT), container("c0"), annotated=written)
    assert allocations_of(ledger, NODE, pod) == {"init": written["init"], "c0": GOT}


def test_an_init_container_served_before_the_agent_started_keeps_no_pod_waiting() -> None:
    ledger = Ledger()
    _served(ledger, "c0")
    pod = view("p", container("init", 10, 1, kind=INIT), container("c0"))
    assert allocations_of(ledger, NODE, pod) == {"c0": GOT}


def test_an_init_container_still_to_come_keeps_its_pod_waiting() -> None:
    pod = view("p", container("c0", kind=INIT), container("init", 10, 1, kind=INIT))
    ledger = Ledger()
    _served(ledger, "c0")
    assert allocations_of(ledger, NODE, pod) is None
    assert allocations_of(Ledger(), NODE, pod) is None


def test_a_container_that_asks_for_nothing_is_never_complete() -> None:
    assert allocations_of(Ledger(), NODE, view("p", container("c0", 0, 0))) is None


# --- whether it need be written -------------------------------------------------------

ORDER, RECORD, WITNESS = Evidence.ORDER, Evidence.RECORD, Evidence.WITNESS


def _got(evidence: Evidence = WITNESS, *cards: str, cores: int = 50) -> Allocation:
    return Allocation(cards or ("GPU-0",), cores, 4, evidence)


@pytest.mark.parametrize(
    ("found", "annotated", "news"),
    [
        ({}, {}, False),
        ({}, {"c0": _got()}, False),
        ({"c0": _got()}, {}, True),
        ({"c0": _got()}, {"c0": _got()}, False),
        ({"c0": _got()}, {"c0": _got(), "c1": _got()}, False),
        ({"c0": _got(), "c1": _got()}, {"c0": _got()}, True),
        ({"c0": _got(WITNESS, "GPU-1")}, {"c0": _got()}, True),
        ({"c0": _got(cores=60)}, {"c0": _got()}, True),
        ({"c0": _got(RECORD)}, {"c0": _got(WITNESS)}, False),
        ({"c0": _got(Evidence.TICKET)}, {"c0": _got(RECORD)}, False),
        ({"c0": _got(RECORD)}, {"c0": _got(ORDER)}, True),
        ({"c0": _got(ORDER)}, {"c0": _got(RECORD)}, False),
        ({"c0": _got(ORDER)}, {"c0": _got(ORDER)}, False),
        ({"c0": _got(), "c1": _got(RECORD)}, {"c0": _got(), "c1": _got(ORDER)}, True),
    ],
)
def test_what_the_record_on_a_pod_says_already_is_no_news(
    found: dict[str, Allocation], annotated: dict[str, Allocation], news: bool
) -> None:
    """Newer evidence alone is none either, but for the proof of a guess."""
    assert is_news(found, annotated) is news


# --- what ordinary init containers got ------------------------------------------------


def test_what_init_containers_got_is_told_of_those_that_have_all_they_ask_for() -> None:
    ledger = Ledger()
    for name in ("i0", "i1", "c0"):
        hold(ledger, P, name, CORE, CORES, kind=MAIN if name == "c0" else INIT)
    for name in ("i0", "c0"):
        hold(ledger, P, name, MEMORY, BLOCKS, kind=MAIN if name == "c0" else INIT)
    inits = [container(name, kind=INIT) for name in ("i0", "i1", "i2")]
    pod = view("p", *inits, container("s", kind=SIDECAR), container("c0"))
    assert served_inits(ledger, NODE, pod) == {"i0": GOT}


def test_a_pod_without_init_containers_has_none_served() -> None:
    ledger = Ledger()
    _served(ledger, "c0")
    assert served_inits(ledger, NODE, view("p")) == {}


@pytest.mark.parametrize(
    ("evidence", "believed"), [(Evidence.ORDER, True), (Evidence.WITNESS, False)]
)
def test_of_an_annotation_that_the_kubelets_record_contradicts_only_a_guess_is_believed(
    evidence: Evidence, believed: bool
) -> None:
    """Of what its ordinary init containers got the kubelet tells nothing (K4)."""
    ledger = Ledger()
    _served(ledger, "c0", Evidence.RECORD)
    for resource in (CORE, MEMORY):
        ledger.prove(ContainerRef(P, "c0"), resource)
    init = Allocation(("GPU-1",), 20, 2, Evidence.WITNESS)
    pod = view(
        "p",
        container("i0", 20, 2, kind=INIT),
        container("c0", 50, 4),
        annotated={"i0": init, "c0": Allocation(("GPU-1",), 50, 4, evidence)},
    )
    found = allocations_of(ledger, NODE, pod)
    assert found is not None
    assert found.get("i0") == (init if believed else None)
