"""Init containers answered for one of their two resources when the kubelet died."""

import pytest

from agent.allocator.half_served import half_served
from agent.allocator.model.ledger import ContainerRef, Holding, Ledger
from agent.allocator.model.pod_view import PodView
from contract.allocation import Evidence
from tests.agent.builders import (
    CORE,
    INIT,
    MEMORY,
    container,
    hold,
    ids,
    pod_id,
    view,
)

POD = view("p", container("init", 50, 4, kind=INIT), container("c0", 50, 4))
CORES, BLOCKS = ids("GPU-0", range(50)), ids("GPU-0", range(4))
FIRST = ContainerRef(pod_id(), "init")


@pytest.mark.parametrize("known", [POD, None], ids=["known", "unknown"])
def test_an_init_container_with_one_of_two_resources_is_half_served(known: PodView | None) -> None:
    ledger = Ledger()
    hold(ledger, POD.id, "init", CORE, CORES, kind=INIT)
    assert half_served(ledger, lambda _pod: known) == [FIRST]
    hold(ledger, POD.id, "init", MEMORY, BLOCKS, kind=INIT)
    assert half_served(ledger, lambda _pod: known) == []


@pytest.mark.parametrize("known", [POD, None], ids=["known", "unknown"])
def test_one_that_is_followed_by_another_had_all_of_it(known: PodView | None) -> None:
    ledger = Ledger()
    hold(ledger, POD.id, "init", CORE, CORES, kind=INIT)
    hold(ledger, POD.id, "c0", CORE, CORES)
    assert half_served(ledger, lambda _pod: known) == []


def test_one_that_is_being_served_is_not_meant() -> None:
    ledger = Ledger()
    ledger.assign(FIRST, INIT, CORE, Holding(CORES, Evidence.WITNESS, answered=True))
    assert half_served(ledger, lambda _pod: POD) == []
    ledger.new_kubelet()
    assert half_served(ledger, lambda _pod: POD) == [FIRST]


def test_a_whole_card_without_memory_is_all_that_was_asked_for() -> None:
    pod = view("p", container("init", 100, 0, kind=INIT), container("c0", 50, 4))
    ledger = Ledger()
    hold(ledger, pod.id, "init", CORE, ids("GPU-0", range(100)), kind=INIT)
    assert half_served(ledger, lambda _pod: pod) == []
    assert half_served(ledger, lambda _pod: None) == []


def test_a_container_that_the_pod_does_not_have_is_left_alone() -> None:
    ledger = Ledger()
    hold(ledger, POD.id, "other", CORE, CORES, kind=INIT)
    assert half_served(ledger, lambda _pod: POD) == []


def test_listed_containers_are_left_to_the_kubelets_record() -> None:
    ledger = Ledger()
    hold(ledger, POD.id, "c0", CORE, CORES)
    assert half_served(ledger, lambda _pod: POD) == []
