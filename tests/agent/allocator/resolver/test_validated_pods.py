"""Records of cards that this node does not have are read by nobody."""

from collections.abc import Sequence
from dataclasses import replace

from agent.allocator.model.pod_view import PodView
from agent.allocator.resolver.validated_pods import ValidatedPods
from contract.allocation import Allocation, Evidence
from tests.agent.fakes import FakePods, asks, init, make_pod, make_table

HERE = Allocation(("GPU-1",), 30, 8, Evidence.WITNESS)
LOST = Allocation(("GPU-LOST",), 30, 8, Evidence.WITNESS)


class SteadyPods(FakePods):
    """Returns the same object until something changes, as the pod cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.told: tuple[PodView, ...] = ()

    def views(self) -> Sequence[PodView]:
        fresh = tuple(super().views())
        if fresh != self.told:
            self.told = fresh
        return self.told


def test_only_records_of_cards_that_are_here_count() -> None:
    pods = FakePods()
    view = make_pod("a", asks(30, 8, "one"), asks(30, 8, "two"))
    pods.add(replace(view, annotated={"one": HERE, "two": LOST}, assigned=True))
    (valid,) = ValidatedPods(pods, make_table()).views()
    assert (valid.annotated, valid.assigned) == ({"one": HERE}, False)
    assert replace(valid, annotated={}) == replace(view, annotated={})


def test_what_is_left_may_still_be_complete() -> None:
    """What an init container got nobody can tell any more, and it is over."""
    view = make_pod("a", init(30, 8), asks(30, 8))
    view = replace(view, annotated={"init": LOST, "main": HERE}, assigned=True)
    valid = ValidatedPods(FakePods(), make_table()).validate(view)
    assert (valid.annotated, valid.assigned) == ({"main": HERE}, True)


def test_a_pod_that_is_fetched_is_read_in_the_same_way() -> None:
    pods = FakePods()
    pods.add(replace(make_pod("a", asks(30, 8)), annotated={"main": LOST}))
    found = ValidatedPods(pods, make_table()).fetch("default", "a")
    assert found is not None
    assert not found.annotated


def test_views_stay_the_same_objects_while_nothing_changes() -> None:
    pods = SteadyPods()
    valid = ValidatedPods(pods, make_table())
    pods.add(replace(make_pod("good", asks(30, 8)), annotated={"main": HERE}))
    assert valid.views() is pods.views()
    pods.add(replace(make_pod("bad", asks(30, 8)), annotated={"main": LOST}))
    first = valid.views()
    assert valid.views() is first
    pods.add(make_pod("new", asks(30, 8)))
    later = valid.views()
    assert [one is other for one, other in zip(first, later, strict=False)] == [True, True]
