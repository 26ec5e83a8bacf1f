"""Pods as the scheduler reads them."""

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.wishes import NO_WISHES
from placement.cluster.pods import has_ended, shape_of
from tests.placement.cluster.builders import NAMES, a_pod, hint, make_pod, record


def test_a_pod_is_read_with_its_record_and_its_choice() -> None:
    pod = a_pod(
        "a",
        (30, 4),
        (40, 4),
        node="n1",
        annotations=record(c0=(["GPU-n1-1"], 30, 4)) | hint("0", "1"),
    )
    assert str(pod) == "default/a"
    assert (pod.node, pod.uid) == ("n1", "u-a")
    assert pod.recorded == (("c0", ("GPU-n1-1",)),)
    assert pod.chosen == (("c1", (1,)),)


def test_records_and_choices_that_make_no_sense_are_not_read() -> None:
    annotations = record(c0=(["GPU-n1-1"], 99, 4)) | {NAMES.predicate_gpu_idx(0): "all"}
    pod = a_pod("a", (30, 4), annotations=annotations)
    assert (pod.recorded, pod.chosen) == ((), ())
    assert a_pod("a", (30, 4), annotations={NAMES.gpu_allocation: "{"}).recorded == ()


def test_equal_pods_have_equal_shapes_whatever_they_are_called() -> None:
    one, other = a_pod("a", (30, 4)), a_pod("b", (30, 4), node="n1", annotations=hint("0"))
    assert one.shape == other.shape
    limit = {NAMES.core_limit: "50"}
    assert a_pod("c", (30, 4), annotations=limit).shape == one.shape
    assert a_pod("d", (30, 5)).shape != one.shape
    assert a_pod("e", (30, 4), annotations={NAMES.use_gpu_type: "a100"}).shape != one.shape


def test_nothing_is_remembered_of_pods_with_very_many_containers() -> None:
    """Of thousands, each of them megabytes, the extender would be killed."""
    remembered = shape_of.cache_info().currsize
    many = a_pod("a", *[(1, 1)] * 400)
    assert len(many.shape.needs) == 400
    assert shape_of.cache_info().currsize == remembered
    assert many.demand is not a_pod("b", *[(1, 1)] * 400).demand
    few = a_pod("a", *[(1, 1)] * 4)
    assert few.shape is a_pod("b", *[(1, 1)] * 4).shape


def test_a_shape_knows_what_the_whole_pod_asks_for() -> None:
    shape = a_pod("a", (30, 4), (200, 8), inits=[(300, 0)], sidecars=[(10, 1)]).shape
    assert [need.kind for need in shape.needs] == [
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.MAIN,
        ContainerKind.MAIN,
    ]
    assert shape.asked == (300, 13)
    assert shape.most_cards is not None
    assert shape.most_cards.cards == 3


def test_an_init_container_runs_beside_the_sidecars_that_stand_before_it() -> None:
    side, init, main = ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.MAIN
    demand = PodDemand(
        (
            ContainerDemand("side", side, 0, Demand(20, 1000)),
            ContainerDemand("init", init, 1, Demand(90, 4000)),
            ContainerDemand("main", main, 0, Demand(10, 1)),
        )
    )
    assert shape_of(demand, NO_WISHES).asked == (110, 5000)


def test_what_the_webhook_refuses_is_a_problem_of_the_pod() -> None:
    """Of a pod that was created while there was no webhook."""
    assert a_pod("a", (150, 4)).shape.problem == (
        "150 cores and 4 memory blocks fit no card: a share of one card is 1 to 99 cores, whole "
        "cards are a multiple of 100"
    )
    assert a_pod("a", (60, 4), (60, 4), inits=[(100, 0)]).shape.problem == (
        "container c1: init containers before it leave 40 cores over, the kubelet would hand it "
        "these first, and their card has only 40 cores for it: ask for at most 40 here, or for so "
        "little there that nothing is left over"
    )
    assert a_pod("a", (50, 4), inits=[(200, 0)]).shape.problem == ""  # it may have luck


def test_a_pod_has_ended_once_it_has_succeeded_or_failed() -> None:
    phases = ("Pending", "Running", "Unknown", "Succeeded", "Failed")
    assert [has_ended(make_pod("a", phase=phase)) for phase in phases] == [
        *(False, False, False),
        *(True, True),
    ]
