"""The one reader of pods, for agent, extender and view; and the classes of pods."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.allocation import Allocation, Evidence, encode_allocations
from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.requests import read_pod_demand
from contract.stamps import OrderStamp
from contract.wishes import NO_WISHES, Wishes
from placement.pods import PodId, class_of, read_gpu_pod, read_pod
from tests.agent.builders import cases, container, patient
from tests.agent.fakes import NAMES, make_manifest
from tests.placement.cluster.builders import Json, a_pod, hint

TIME = 1_700_000_000_000_000_000
CREATED = 1_700_000_100_000_000_000
BOUND = OrderStamp(TIME + 5, "bind", 1)
ADMITTED = OrderStamp(TIME + 1, "create", 2)
TWO = Allocation(("GPU-0", "GPU-1"), 200, 4, Evidence.WITNESS)
ONE = Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)
RECORD = {"c0": ONE}

POD: dict[str, Any] = {
    "metadata": {
        "namespace": "default",
        "name": "p",
        "uid": "u-1",
        "creationTimestamp": "2023-11-14T22:15:00Z",
        "annotations": {
            NAMES.bind_order: BOUND.encode(),
            NAMES.admission_order: ADMITTED.encode(),
            NAMES.predicate_time: str(TIME + 3),
            NAMES.gpu_assigned: "false",
        },
    },
    "spec": {
        "containers": [
            {"name": "c0", "resources": {"limits": {NAMES.core: "50", NAMES.memory: "4"}}}
        ]
    },
    "status": {"phase": "Pending"},
}


def _pod(**annotations: str | None) -> dict[str, Any]:
    """The full pod with annotations of ours changed; ``None`` leaves one out."""
    pod = copy.deepcopy(POD)
    for name, value in annotations.items():
        key = getattr(NAMES, name)
        pod["metadata"]["annotations"].pop(key, None)
        if value is not None:
            pod["metadata"]["annotations"][key] = value
    return pod


def test_a_stamped_pod_is_read() -> None:
    view = read_pod(POD, NAMES)
    assert view.id == PodId("default", "p", "u-1")
    assert view.demand.containers == (container("c0", 50, 4),)
    assert view.rank == (TIME + 5, BOUND.encode(), ADMITTED.encode(), CREATED, "u-1")
    assert (view.annotated, view.faults) == ({}, ())
    phases: tuple[Json, ...] = ({"phase": "Pending"}, {"phase": "Running"}, {"phase": "Failed"}, {})
    views = [read_pod(POD | {"status": each}, NAMES) for each in phases]
    assert [each.running for each in views] == [False, True, False, False]
    assert [each.terminal for each in views] == [False, False, True, False]


def test_the_ids_of_containers_are_read_where_there_are_several() -> None:
    status = {
        "containerStatuses": [{"name": "c0", "containerID": "containerd://a1"}, {"name": "c1"}],
        "initContainerStatuses": [{"name": "side", "containerID": "cri-o://b2"}],
    }
    pod = _pod() | {"status": status}
    assert read_pod(pod, NAMES).by_id == {}
    (first,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [first, first | {"name": "c1"}]
    assert read_pod(pod, NAMES).by_id == {"b2": "side", "a1": "c0"}


# --- allocations ----------------------------------------------------------------------


@cases(
    "written, limits, valid",
    {
        "what it requests": (RECORD, (50, 4), ["c0"]),
        "other cores": ({"c0": replace(ONE, cores=49)}, (50, 4), []),
        "no card": ({"c0": replace(ONE, cards=())}, (50, 4), []),
        "a share of two cards": ({"c0": replace(ONE, cards=TWO.cards)}, (50, 4), []),
        "one card twice": ({"c0": replace(TWO, cards=("GPU-0", "GPU-0"))}, (200, 4), []),
        "one that is valid, and one that is not": (RECORD | {"other": ONE}, (50, 4), ["c0"]),
        "of one that requests nothing": (RECORD, None, []),
    },
)
def test_an_allocation_that_the_spec_contradicts_is_a_fault_and_none(
    written: dict[str, Allocation], limits: tuple[int, int] | None, valid: list[str]
) -> None:
    """A manifest may bring it from another pod."""
    pod = _pod(gpu_allocation=encode_allocations(written))
    requested = dict(zip((NAMES.core, NAMES.memory), map(str, limits or ()), strict=False))
    pod["spec"]["containers"][0]["resources"] = {"limits": requested} if requested else {}
    view = read_pod(pod, NAMES)
    assert view.annotated == {name: written[name] for name in valid}
    assert view.faults == tuple(
        f'metadata.annotations[tencent.com/gpu-allocation]: Invalid value: "{name}": '
        "must match the request of the container with this name"
        for name in written
        if name not in valid
    )


# --- the queue ------------------------------------------------------------------------


def test_a_pod_without_a_creation_time_is_read_all_the_same() -> None:
    view = read_pod({"metadata": {"name": "p", "namespace": "default"}}, NAMES)
    assert (view.id, view.rank) == (PodId("default", "p", ""), (0, "", "", 0, ""))
    assert not view.demand


def test_pods_stand_in_line_by_bind_admission_creation_and_uid_in_that_order() -> None:
    later = OrderStamp(TIME + 5, "bind", 2).encode()
    last = OrderStamp(TIME + 9, "bind", 0).encode()
    bound = read_pod(_pod(), NAMES)
    same_ns = read_pod(_pod(bind_order=later), NAMES)
    later_ns = read_pod(_pod(bind_order=last), NAMES)
    admitted = read_pod(_pod(admission_order=OrderStamp(TIME + 2, "a", 0).encode()), NAMES)
    lines = [each.rank for each in (later_ns, same_ns, admitted, bound)]
    assert sorted(lines) == lines[::-1]


# --- what does not parse --------------------------------------------------------------

_STAMP_RULE = "must be 20 digits of ns, a writer and 8 digits of count, joined by '-'"
_POLICY = (
    f'metadata.annotations[{NAMES.gpu_policy}]: Invalid value: "fair": must be binpack or spread'
)
_INDICES = (
    f'metadata.annotations[{NAMES.predicate_gpu_idx(0)}]: Invalid value: "{{}}": must be '
    "card indices, comma-separated, such as 0,1"
)


_TIME_FAULT = 'predicate time: Invalid value: "0": must be unix time in ns, decimal'
_STAMP_FAULT = f'order stamp: Invalid value: "x": {_STAMP_RULE}'


@pytest.mark.parametrize(
    ("changed", "faults", "time_ns"),
    [
        # A missing stamp is stood in for by the best time known.
        ({}, [], TIME + 5),
        ({"bind_order": None}, [], TIME + 3),
        ({"bind_order": None, "predicate_time": None}, [], TIME + 1),
        (dict.fromkeys(["bind_order", "predicate_time", "admission_order"]), [], CREATED),
        ({"bind_order": None, "predicate_time": "0"}, [_TIME_FAULT], TIME + 1),
        ({"predicate_time": "x"}, [], TIME + 5),  # beside a bind order it is not looked at
        ({"gpu_allocation": "[]"}, ["gpu-allocation: must be a JSON object"], TIME + 5),
        (
            {"bind_order": "x", "admission_order": "x", "predicate_time": "0"},
            [_STAMP_FAULT, _STAMP_FAULT, _TIME_FAULT],
            CREATED,
        ),
    ],
)
def test_unreadable_annotations_are_faults_and_never_zero(
    changed: dict[str, str | None], faults: list[str], time_ns: int
) -> None:
    view = read_pod(_pod(**changed), NAMES)
    assert (view.faults, view.rank.time_ns) == (tuple(faults), time_ns)
    assert (view.annotated, view.wishes) == ({}, Wishes())


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        *[("3,0", {"c0": (3, 0)}), ("2,2", {"c0": (2,)})],
        *((text, {}) for text in ("", "1,", "-1", "1, 2", "1" * 10)),
    ],
)
def test_a_schedulers_choice_is_read_or_reported_as_invalid(
    text: str, chosen: dict[str, tuple[int, ...]]
) -> None:
    pod = _pod()
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = text
    view = read_pod(pod, NAMES)
    assert (view.chosen, view.faults) == (chosen, () if chosen else (_INDICES.format(text),))


def test_indices_that_the_agent_wrote_with_its_record_are_no_choice() -> None:
    pod = _pod(gpu_allocation=encode_allocations(RECORD))
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = "1"
    assert read_pod(pod, NAMES).chosen == {}


def test_all_containers_are_known_by_name_those_without_gpus_too() -> None:
    obj = make_manifest("p", (30, 8))
    obj["spec"]["containers"].append({"name": "plain"})
    obj["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always"},
        {"name": "setup"},
    ]
    view = read_pod(obj, NAMES)
    assert view.mains == {"c0", "plain"}
    assert view.sidecars == {"proxy"}


@pytest.mark.parametrize(("mirror", "uid"), [(True, "hash"), (False, "u-1")])
def test_the_kubelet_knows_a_static_pod_by_the_hash_of_its_manifest(mirror: bool, uid: str) -> None:
    """K34. Any user may write the hash, and only a kubelet makes a mirror pod."""
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash"
    if mirror:
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert read_pod(pod, NAMES).runtime_uid == uid


def test_a_pod_without_gpus_is_read_for_the_agent_alone() -> None:
    """Its name may be another pod's, and no other program reads it."""
    plain = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"nodeName": "n1"}}
    assert read_gpu_pod(plain, NAMES) is None
    assert read_pod(plain, NAMES).node == "n1"
    assert read_gpu_pod(POD, NAMES) == read_pod(POD, NAMES)


def test_errors_in_limits_and_wishes_are_errors_of_the_request() -> None:
    pod = _pod(gpu_policy="fair", use_gpu_type="A100, H100")
    pod["spec"]["containers"][0]["resources"]["limits"][NAMES.core] = "150"
    view = read_pod(pod, NAMES)
    assert view.demand.containers[0].demand == Demand(150, 4), "read as far as it goes"
    assert view.wishes == Wishes(use_types=("a100", "h100"))
    (limit, wish) = view.errors
    assert limit.startswith("spec.containers[0].resources.limits[tencent.com/vcuda-core]: ")
    assert wish == _POLICY


@pytest.mark.parametrize("name", [1, None, ["c"], {}])
def test_a_manifest_whose_containers_have_no_readable_names_is_read(name: object) -> None:
    """The API server refuses it; ``kubectl gpu fit -f`` reads unchecked manifests."""
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["name"] = name
    assert read_pod(pod, NAMES).mains == {""}


# --- whatever comes -------------------------------------------------------------------

_COUNT: st.SearchStrategy[object] = st.sampled_from(
    ["30", "150", "100", "4", "", "x", 30, 0, None, [], True, "1e2"]
)
_LISTED = st.dictionaries(st.sampled_from([NAMES.core, NAMES.memory, "cpu"]), _COUNT, max_size=3)
_RESOURCES: st.SearchStrategy[object] = st.fixed_dictionaries(
    {},
    optional={each: _LISTED | st.sampled_from([None, "x", []]) for each in ("limits", "requests")},
)
_CONTAINER = st.fixed_dictionaries(
    {}, optional={"name": st.sampled_from(["a", "b", 1]), "resources": _RESOURCES | st.none()}
)
_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER | st.none(), max_size=2)},
    optional={"initContainers": st.lists(_CONTAINER, max_size=1)},
)


@patient
@given(_SPEC)
def test_a_pod_requests_what_the_contract_reads(spec: Json) -> None:
    """Most pods are read by a short way: it must not be seen."""
    demand, errors = read_pod_demand({"spec": spec}, NAMES)
    found = read_gpu_pod({"metadata": {"name": "a", "uid": "u"}, "spec": spec}, NAMES)
    read = (found.demand, found.errors) if found is not None else None
    assert read == ((demand, tuple(map(str, errors))) if demand else None)


# --- classes --------------------------------------------------------------------------


def test_equal_pods_have_one_class_whatever_their_names() -> None:
    one, other = a_pod("a", (30, 4)), a_pod("b", (30, 4), node="n1", annotations=hint("0"))
    assert one.pod_class == other.pod_class
    limit = {NAMES.core_limit: "50"}
    assert a_pod("c", (30, 4), annotations=limit).pod_class == one.pod_class
    assert a_pod("d", (30, 5)).pod_class != one.pod_class
    assert a_pod("e", (30, 4), annotations={NAMES.use_gpu_type: "a100"}).pod_class != one.pod_class


def test_pods_with_very_many_containers_are_not_cached() -> None:
    """Of thousands, each of them megabytes, the extender would be killed."""
    remembered = class_of.cache_info().currsize
    many = a_pod("a", *[(1, 1)] * 400)
    assert len(many.pod_class.needs) == 400
    assert class_of.cache_info().currsize == remembered
    assert many.demand is not a_pod("b", *[(1, 1)] * 400).demand
    few = a_pod("a", *[(1, 1)] * 4)
    assert few.pod_class is a_pod("b", *[(1, 1)] * 4).pod_class


def test_a_pod_class_has_the_whole_pods_demand() -> None:
    found = a_pod("a", (30, 4), (200, 8), inits=[(300, 0)], sidecars=[(10, 1)]).pod_class
    assert found.kinds == (
        ContainerKind.INIT,
        ContainerKind.SIDECAR,
        ContainerKind.MAIN,
        ContainerKind.MAIN,
    )
    assert found.peak == (300, 13)
    assert found.shares == 2
    assert found.most_cards is not None
    assert found.most_cards.demand.cards == 3
    divided = a_pod("b", (30, 4), (60, 8), split={"c1": 4}).pod_class
    assert divided != a_pod("b", (30, 4), (60, 8)).pod_class
    assert divided.shares == 5
    assert divided.peak == (90, 12)


def test_an_init_container_runs_beside_the_sidecars_that_stand_before_it() -> None:
    side, init, main = ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.MAIN
    demand = PodDemand(
        (
            ContainerDemand("side", side, 0, Demand(20, 1000)),
            ContainerDemand("init", init, 1, Demand(90, 4000)),
            ContainerDemand("main", main, 0, Demand(10, 1)),
        )
    )
    assert class_of(demand, NO_WISHES).peak == (110, 5000)


def test_a_request_that_the_webhook_refuses_is_a_problem_of_the_pod() -> None:
    """Of a pod that was created while there was no webhook."""
    assert a_pod("a", (150, 4)).pod_class.problem == (
        "150 cores and 4 memory blocks fit no card: a share of one card is 1 to 99 cores, whole "
        "cards are a multiple of 100"
    )
    assert a_pod("a", (60, 8), split={"c0": 3}).pod_class.problem == (
        "60 cores and 8 memory blocks over 3 cards fit no card: they cannot be divided evenly"
    )
    assert a_pod("a", (60, 4), (60, 4), inits=[(100, 0)]).pod_class.problem == (
        "container c1: the kubelet would first reuse 40 cores of init containers before it, but "
        "their card has only 40 cores free: request at most 40 here, or so few in those that none "
        "remain for this container"
    )
    assert a_pod("a", (50, 4), inits=[(200, 0)]).pod_class.problem == ""  # it may have luck
