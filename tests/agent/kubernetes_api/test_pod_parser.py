import copy
from dataclasses import replace
from typing import Any

import pytest

from agent.allocator.model.pod_view import PodId
from agent.kubernetes_api.pod_parser import parse_pod
from contract.allocation import Allocation, Evidence, encode_allocations
from contract.demand import Demand
from contract.stamps import OrderStamp
from contract.wishes import Wishes
from tests.agent.builders import cases, container
from tests.agent.fakes import NAMES, make_manifest

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
    view = parse_pod(POD, NAMES)
    assert view.id == PodId("default", "p", "u-1")
    assert view.demand.containers == (container("c0", 50, 4),)
    assert view.position == (TIME + 5, BOUND.encode(), ADMITTED.encode(), CREATED, "u-1")
    assert (view.terminal, view.running, view.annotated, view.faults) == (False, False, {}, ())


@pytest.mark.parametrize(
    ("status", "terminal", "running"),
    [
        ({"phase": "Running"}, False, True),
        ({"phase": "Unknown"}, False, False),
        ({"phase": "Succeeded"}, True, False),
        ({"phase": "Failed"}, True, False),
        ({}, False, False),
        (None, False, False),
    ],
)
def test_its_phase_tells_whether_a_pod_runs_or_has_ended(
    status: object, terminal: bool, running: bool
) -> None:
    view = parse_pod(POD | {"status": status}, NAMES)
    assert (view.terminal, view.running) == (terminal, running)


# --- allocations ----------------------------------------------------------------------


@cases(
    "written, limits, valid",
    {
        "what it asks for": (RECORD, (50, 4), ["c0"]),
        "other cores": ({"c0": replace(ONE, cores=49)}, (50, 4), []),
        "other memory": ({"c0": replace(ONE, memory_blocks=5)}, (50, 4), []),
        "no card": ({"c0": replace(ONE, cards=())}, (50, 4), []),
        "a share of two cards": ({"c0": replace(ONE, cards=TWO.cards)}, (50, 4), []),
        "two cards": ({"c0": TWO}, (200, 4), ["c0"]),
        "one card twice": ({"c0": replace(TWO, cards=("GPU-0", "GPU-0"))}, (200, 4), []),
        "of no container": ({"other": ONE}, (50, 4), []),
        "one that is valid, and one that is not": (RECORD | {"other": ONE}, (50, 4), ["c0"]),
        "of one that asks for nothing": (RECORD, None, []),
    },
)
def test_an_allocation_that_the_spec_contradicts_is_a_fault_and_none(
    written: dict[str, Allocation], limits: tuple[int, int] | None, valid: list[str]
) -> None:
    """A manifest may bring it from another pod."""
    pod = _pod(gpu_allocation=encode_allocations(written))
    asked = dict(zip((NAMES.core, NAMES.memory), map(str, limits or ()), strict=False))
    pod["spec"]["containers"][0]["resources"] = {"limits": asked} if asked else {}
    view = parse_pod(pod, NAMES)
    assert view.annotated == {name: written[name] for name in valid}
    assert view.faults == tuple(
        f'metadata.annotations[tencent.com/gpu-allocation]: Invalid value: "{name}": '
        "must record what the container of this name asks for"
        for name in written
        if name not in valid
    )


# --- the queue ------------------------------------------------------------------------


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
    assert (view.position.time_ns, view.faults) == (time_ns, ())


@pytest.mark.parametrize("annotations", [None, {}])
def test_a_pod_without_stamps_stands_in_line_by_its_creation(annotations: object) -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"] = annotations
    assert parse_pod(pod, NAMES).position == (CREATED, "", "", CREATED, "u-1")


def test_a_pod_without_a_creation_time_is_read_all_the_same() -> None:
    view = parse_pod({"metadata": {"name": "p", "namespace": "default"}}, NAMES)
    assert (view.id, view.position) == (PodId("default", "p", ""), (0, "", "", 0, ""))
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


# --- what does not parse --------------------------------------------------------------

_STAMP_RULE = "must be 20 digits of ns, a writer and 8 digits of count, joined by '-'"
_POLICY = (
    f'metadata.annotations[{NAMES.gpu_policy}]: Invalid value: "fair": must be binpack or spread'
)
_INDICES = (
    f'metadata.annotations[{NAMES.predicate_gpu_idx(0)}]: Invalid value: "{{}}": must be '
    "card indices, comma-separated, such as 0,1"
)


@cases(
    "changed, faults, time_ns",
    {
        "bind order": (
            {"bind_order": "first"},
            [f'order stamp: Invalid value: "first": {_STAMP_RULE}'],
            TIME + 3,
        ),
        "admission order": (
            {"admission_order": "0"},
            [f'order stamp: Invalid value: "0": {_STAMP_RULE}'],
            TIME + 5,
        ),
        "predicate time": (
            {"bind_order": None, "predicate_time": "0"},
            ['predicate time: Invalid value: "0": must be unix time in ns, decimal'],
            TIME + 1,
        ),
        "a predicate time beside a bind order is not looked at": (
            {"predicate_time": "x"},
            [],
            TIME + 5,
        ),
        "allocation": (
            {"gpu_allocation": "[]"},
            ["gpu-allocation: must be a JSON object"],
            TIME + 5,
        ),
        "a wish": (
            {"gpu_policy": "fair"},
            [_POLICY],
            TIME + 5,
        ),
        "several": (
            {"bind_order": "x", "admission_order": "x", "predicate_time": "0"},
            [
                f'order stamp: Invalid value: "x": {_STAMP_RULE}',
                f'order stamp: Invalid value: "x": {_STAMP_RULE}',
                'predicate time: Invalid value: "0": must be unix time in ns, decimal',
            ],
            CREATED,
        ),
    },
)
def test_what_does_not_parse_is_a_fault_and_never_a_zero(
    changed: dict[str, str | None], faults: list[str], time_ns: int
) -> None:
    view = parse_pod(_pod(**changed), NAMES)
    assert (view.faults, view.position.time_ns) == (tuple(faults), time_ns)
    assert (view.annotated, view.wishes) == ({}, Wishes())


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        *[("1", {"c0": (1,)}), ("3,0", {"c0": (3, 0)}), ("2,2", {"c0": (2,)})],
        *((text, {}) for text in ("", "one", "1,", "-1", "1, 2", "1" * 10)),
    ],
)
def test_what_a_scheduler_chose_is_read_or_told(
    text: str, chosen: dict[str, tuple[int, ...]]
) -> None:
    pod = _pod()
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = text
    view = parse_pod(pod, NAMES)
    assert (view.chosen, view.faults) == (chosen, () if chosen else (_INDICES.format(text),))


def test_what_the_agent_wrote_with_its_record_is_no_choice() -> None:
    pod = _pod(gpu_allocation=encode_allocations(RECORD))
    pod["metadata"]["annotations"][NAMES.predicate_gpu_idx(0)] = "1"
    assert parse_pod(pod, NAMES).chosen == {}


def test_what_its_author_wishes_is_read() -> None:
    assert parse_pod(_pod(use_gpu_type="A100, H100"), NAMES).wishes == Wishes(
        use_types=("a100", "h100")
    )


def test_a_demand_that_breaks_a_rule_is_read_as_far_as_it_goes() -> None:
    pod = copy.deepcopy(POD)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    limits[NAMES.core], limits[NAMES.memory] = "150", "x"
    assert parse_pod(pod, NAMES).demand.containers[0].demand == Demand(150, 0)


def test_all_containers_are_known_by_name_those_without_gpus_too() -> None:
    obj = make_manifest("p", (30, 8))
    obj["spec"]["containers"].append({"name": "plain"})
    obj["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always"},
        {"name": "setup"},
    ]
    view = parse_pod(obj, NAMES)
    assert view.mains == {"c0", "plain"}
    assert view.sidecars == {"proxy"}


@pytest.mark.parametrize(("mirror", "uid"), [(True, "hash"), (False, "u-1")])
def test_the_kubelet_knows_a_static_pod_by_the_hash_of_its_manifest(mirror: bool, uid: str) -> None:
    """K34. Anybody may write the hash, and nobody but a kubelet makes a mirror pod."""
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = "hash"
    if mirror:
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert parse_pod(pod, NAMES).runtime_uid == uid
