import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.pod_view import PodId, PodView
from agent.kubernetes_api.pod_parser import parse_pod
from contract.allocation import Allocation, Evidence, encode_allocations
from contract.demand import Demand
from contract.names import Names
from contract.stamps import OrderStamp
from contract.wishes import Wishes
from tests.agent.builders import container, patient
from tests.agent.fakes import NAMES as FAKE_NAMES
from tests.agent.fakes import make_manifest

NAMES = Names()
TIME = 1_700_000_000_000_000_000
CREATED = 1_700_000_100_000_000_000
BOUND = OrderStamp(TIME + 5, "bind", 1)
ADMITTED = OrderStamp(TIME + 1, "create", 2)
TWO = Allocation(("GPU-0", "GPU-1"), 200, 4, Evidence.WITNESS)
RECORD = {"c0": Allocation(("GPU-0",), 50, 4, Evidence.WITNESS)}

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
    view = parse_pod(POD, NAMES)
    assert view.id == PodId("default", "p", "u-1")
    assert view.demand.containers == (container("c0", 50, 4),)
    assert view.position == (TIME + 5, BOUND.encode(), ADMITTED.encode(), CREATED, "u-1")
    assert (view.terminal, view.deleting, view.assigned) == (False, False, False)
    assert view.annotated == {}
    assert view.faults == ()


@pytest.mark.parametrize(
    ("phase", "terminal"),
    [
        ("Pending", False),
        ("Running", False),
        ("Unknown", False),
        ("Succeeded", True),
        ("Failed", True),
    ],
)
def test_a_pod_that_has_ended_is_terminal(phase: str, terminal: bool) -> None:
    assert parse_pod(POD | {"status": {"phase": phase}}, NAMES).terminal is terminal


@pytest.mark.parametrize("status", [None, {}])
def test_a_pod_without_a_status_has_not_ended(status: object) -> None:
    assert not parse_pod(POD | {"status": status}, NAMES).terminal


def test_a_pod_that_is_being_deleted_says_so() -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["deletionTimestamp"] = "2023-11-14T22:16:00Z"
    assert parse_pod(pod, NAMES).deleting


@pytest.mark.parametrize(
    ("text", "assigned"), [("true", True), ("false", False), ("True", False), (None, False)]
)
def test_only_true_says_that_the_allocation_is_written(text: str | None, assigned: bool) -> None:
    pod = _pod(gpu_assigned=text, gpu_allocation=encode_allocations(RECORD))
    assert parse_pod(pod, NAMES).assigned is assigned


def test_an_assignment_without_a_record_is_none() -> None:
    assert not parse_pod(_pod(gpu_assigned="true"), NAMES).assigned


@pytest.mark.parametrize(
    "written",
    [
        {"c0": Allocation(("GPU-0",), 49, 4, Evidence.WITNESS)},
        {"c0": Allocation(("GPU-0",), 50, 5, Evidence.WITNESS)},
        {"c0": Allocation((), 50, 4, Evidence.WITNESS)},
        {"c0": Allocation(("GPU-0", "GPU-1"), 50, 4, Evidence.WITNESS)},
        {"c1": RECORD["c0"]},
    ],
)
def test_an_allocation_that_the_spec_contradicts_is_not_valid(
    written: dict[str, Allocation],
) -> None:
    text = encode_allocations(written)
    view = parse_pod(_pod(gpu_allocation=text, gpu_assigned="true"), NAMES)
    (name,) = written
    assert (view.annotated, view.assigned) == ({}, False)
    (fault,) = view.faults
    assert fault == (
        f'metadata.annotations[tencent.com/gpu-allocation]: Invalid value: "{name}": '
        "must record what the container of this name asks for"
    )


def test_a_card_that_is_named_twice_is_not_two_cards() -> None:
    pod = _pod(gpu_allocation=encode_allocations({"c0": replace(TWO, cards=("GPU-0", "GPU-0"))}))
    pod["spec"]["containers"][0]["resources"]["limits"] = {NAMES.core: "200", NAMES.memory: "4"}
    assert parse_pod(pod, NAMES).annotated == {}
    pod["metadata"]["annotations"][NAMES.gpu_allocation] = encode_allocations({"c0": TWO})
    assert parse_pod(pod, NAMES).annotated == {"c0": TWO}


def test_one_allocation_that_is_not_valid_does_not_take_others_with_it() -> None:
    text = encode_allocations(RECORD | {"other": RECORD["c0"]})
    view = parse_pod(_pod(gpu_allocation=text, gpu_assigned="true"), NAMES)
    assert (view.annotated, view.assigned) == (RECORD, True)


def test_a_pod_that_asks_for_no_gpu_has_no_record_whatever_it_says() -> None:
    """It never meets the webhook, which would take these away."""
    pod = _pod(
        gpu_allocation=encode_allocations(RECORD),
        gpu_assigned="true",
    )
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = "0"
    del pod["spec"]["containers"][0]["resources"]
    view = parse_pod(pod, NAMES)
    assert (view.annotated, view.assigned, view.chosen) == ({}, False, {})


@pytest.mark.parametrize(
    ("missing", "time_ns"),
    [
        ((), TIME + 5),
        (("bind_order",), TIME + 3),
        (("bind_order", "predicate_time"), TIME + 1),
        (("bind_order", "predicate_time", "admission_order"), CREATED),
        (("predicate_time", "admission_order"), TIME + 5),
    ],
)
def test_a_missing_stamp_is_stood_in_for_by_the_best_time_known(
    missing: tuple[str, ...], time_ns: int
) -> None:
    view = parse_pod(_pod(**dict.fromkeys(missing)), NAMES)
    assert view.position[0] == time_ns
    assert view.faults == ()


@pytest.mark.parametrize("annotations", [None, {}])
def test_a_pod_without_stamps_stands_in_line_by_its_creation(annotations: object) -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"] = annotations
    assert parse_pod(pod, NAMES).position == (CREATED, "", "", CREATED, "u-1")


def test_a_pod_without_a_creation_time_is_read_all_the_same() -> None:
    pod = {"metadata": {"name": "p", "namespace": "default"}}
    view = parse_pod(pod, NAMES)
    assert view.id == PodId("default", "p", "")
    assert view.position == (0, "", "", 0, "")
    assert not view.demand


def test_pods_stand_in_line_by_bind_admission_creation_and_uid_in_that_order() -> None:
    later = OrderStamp(TIME + 5, "bind", 2).encode()
    last = OrderStamp(TIME + 9, "bind", 0).encode()
    bound = parse_pod(_pod(), NAMES)
    same_ns = parse_pod(_pod(bind_order=later), NAMES)
    later_ns = parse_pod(_pod(bind_order=last), NAMES)
    admitted = parse_pod(_pod(admission_order=OrderStamp(TIME + 2, "a", 0).encode()), NAMES)
    lines = [each.position for each in (later_ns, same_ns, admitted, bound)]
    assert sorted(lines) == lines[::-1]


_STAMP_RULE = "must be 20 digits of ns, a writer and 8 digits of count, joined by '-'"


@pytest.mark.parametrize(
    ("changed", "fault", "time_ns"),
    [
        (
            {"bind_order": "first"},
            f'order stamp: Invalid value: "first": {_STAMP_RULE}',
            TIME + 3,
        ),
        (
            {"admission_order": "0"},
            f'order stamp: Invalid value: "0": {_STAMP_RULE}',
            TIME + 5,
        ),
        (
            {"bind_order": None, "predicate_time": "0"},
            'predicate time: Invalid value: "0": must be unix time in ns, decimal',
            TIME + 1,
        ),
        ({"gpu_allocation": "[]"}, "gpu-allocation: must be a JSON object", TIME + 5),
    ],
)
def test_a_stamp_that_does_not_parse_is_a_fault_and_never_a_zero(
    changed: dict[str, str | None], fault: str, time_ns: int
) -> None:
    view = parse_pod(_pod(**changed), NAMES)
    assert view.faults == (fault,)
    assert view.position[0] == time_ns
    assert view.annotated == {}


def test_every_fault_of_a_pod_is_told() -> None:
    broken = dict.fromkeys(("bind_order", "admission_order", "predicate_time"), "x")
    view = parse_pod(_pod(**broken, gpu_allocation="x"), NAMES)
    assert len(view.faults) == 4
    assert view.position == (CREATED, "", "", CREATED, "u-1")


def test_a_predicate_time_beside_a_bind_order_is_not_looked_at() -> None:
    assert parse_pod(_pod(predicate_time="x"), NAMES).faults == ()


def test_the_annotated_allocation_is_read() -> None:
    view = parse_pod(_pod(gpu_allocation=encode_allocations(RECORD)), NAMES)
    assert view.annotated == RECORD


def test_a_demand_that_breaks_a_rule_is_read_as_far_as_it_goes() -> None:
    pod = copy.deepcopy(POD)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits[NAMES.core], limits[NAMES.memory] = "150", "x"
    assert parse_pod(pod, NAMES).demand.containers[0].demand == Demand(150, 0)


_annotations = st.dictionaries(
    st.sampled_from(
        [
            NAMES.bind_order,
            NAMES.admission_order,
            NAMES.predicate_time,
            NAMES.gpu_assigned,
            NAMES.gpu_allocation,
        ]
    ),
    st.text(max_size=30) | st.sampled_from([BOUND.encode(), str(TIME), "{}", "[", "null"]),
)


@patient
@given(_annotations)
def test_no_annotation_however_hostile_raises(annotations: dict[str, str]) -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"] = annotations
    view = parse_pod(pod, NAMES)
    assert view.position[0] > 0
    assert all("\n" not in fault for fault in view.faults)


# --- wishes and choices ---------------------------------------------------------------


def test_what_its_author_wishes_is_read_and_what_is_wrong_in_it_told() -> None:
    view = parse_pod(_pod(use_gpu_type="A100, H100", gpu_policy="fair"), NAMES)
    assert view.wishes == Wishes(use_types=("a100", "h100"))
    assert view.faults == (
        (
            f'metadata.annotations[{NAMES.gpu_policy}]: Invalid value: "fair": '
            "must be binpack or spread"
        ),
    )


def _chosen(text: str, **annotations: str) -> PodView:
    pod = _pod(**annotations)
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = text
    return parse_pod(pod, NAMES)


@pytest.mark.parametrize(("text", "expected"), [("1", (1,)), ("3,0", (3, 0)), ("2,2", (2,))])
def test_what_a_scheduler_chose_is_read(text: str, expected: tuple[int, ...]) -> None:
    view = _chosen(text)
    assert (view.chosen, view.faults) == ({0: expected}, ())


@pytest.mark.parametrize("text", ["", "one", "1,", "-1", "1, 2", "1" * 10])
def test_a_choice_that_does_not_parse_is_a_fault_and_no_choice(text: str) -> None:
    view = _chosen(text)
    assert view.chosen == {}
    assert view.faults == (
        (
            f'metadata.annotations[{NAMES.predicate_gpu_idx(0)}]: Invalid value: "{text}": must be '
            "card indices, comma-separated, such as 0,1"
        ),
    )


def test_what_the_agent_wrote_with_its_record_is_no_choice() -> None:
    assert _chosen("1", gpu_allocation=encode_allocations(RECORD)).chosen == {}


def test_all_containers_are_known_by_name_those_without_gpus_too() -> None:
    obj = make_manifest("p", (30, 8))
    obj["spec"]["containers"].append({"name": "plain"})
    obj["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always"},
        {"name": "setup"},
    ]
    view = parse_pod(obj, FAKE_NAMES)
    assert view.mains == {"c0", "plain"}
    assert view.sidecars == {"proxy"}
