import copy
from collections.abc import Callable, Mapping
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.demand import asks_for_gpus
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.pods import decide_pod, mutate_pod
from webhook.admission.reviews import Review, Target
from webhook.admission.verdicts import Verdict

Json = dict[str, Any]
Stamp = Callable[[], OrderStamp]
NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
TIME = 1_700_000_000_000_000_000
ORDER = "01700000000000000000-w1-00000000"
STAMPS = {
    "tencent.com/predicate-time": str(TIME),
    "tencent.com/admission-order": ORDER,
    "tencent.com/gpu-assigned": "false",
}
LIMITS = "spec.containers[0].resources.limits"


def _decide(pod: Mapping[str, Any]) -> Verdict:
    return decide_pod(pod, names=NAMES, stamp=lambda: OrderStamp(TIME, "w1", 0))


def _apply(pod: Json, verdict: Verdict) -> Json:
    operations: Any = [dict(each) for each in verdict.patch]
    patched: Json = jsonpatch.apply_patch(pod, operations)
    return patched


def _with_resources(pod: Json, resources: object) -> Json:
    pod["spec"]["containers"][0]["resources"] = resources
    return pod


def test_a_gpu_pod_is_stamped_and_nothing_else_is_touched(pod: Json) -> None:
    verdict = _decide(pod)
    assert verdict.allowed
    assert verdict.warnings == ()
    expected = copy.deepcopy(pod)
    expected["metadata"]["annotations"] |= STAMPS
    assert _apply(pod, verdict) == expected


@pytest.mark.parametrize("annotations", [None, {}, "absent"])
def test_a_pod_without_annotations_gets_them(pod: Json, annotations: object) -> None:
    pod["metadata"]["annotations"] = annotations
    if annotations == "absent":
        del pod["metadata"]["annotations"]
    assert _apply(pod, _decide(pod))["metadata"]["annotations"] == STAMPS


@pytest.mark.parametrize("metadata", [None, "absent"])
def test_a_pod_without_metadata_gets_it(pod: Json, metadata: object) -> None:
    pod["metadata"] = None
    if metadata == "absent":
        del pod["metadata"]
    assert _apply(pod, _decide(pod))["metadata"] == {"annotations": STAMPS}


@pytest.mark.parametrize("restart", [{}, {"restartPolicy": "Always"}])
def test_init_containers_and_sidecars_make_a_gpu_pod(pod: Json, restart: Json) -> None:
    container = pod["spec"]["containers"][0]
    resources = container.pop("resources")
    pod["spec"]["initContainers"] = [{"name": "first", "resources": resources} | restart]
    assert _apply(pod, _decide(pod))["metadata"]["annotations"].items() >= STAMPS.items()


WRITTEN_ON_ALL = {
    "tencent.com/predicate-time": "1",
    "tencent.com/bind-order": "1",
    "tencent.com/predicate-node": "n1",
}
"""Annotations that every pod gets by its Binding."""


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"tencent.com/use-gpu-type": "a100", "tencent.com/gpu-policy": "soon"},
        {
            "tencent.com/vcuda-core": "50",
            "tencent.com/unknown": "1",
            "example.com/gpu-assigned": "1",
        },
        WRITTEN_ON_ALL,
    ],
    ids=["none", "wishes", "not ours", "a copy of a plain pod that ran"],
)
def test_a_pod_without_gpus_passes_untouched(pod: Json, annotations: Json) -> None:
    _with_resources(pod, {"limits": {"cpu": "1"}})
    pod["metadata"]["annotations"] = annotations
    assert _decide(pod) == Verdict()


@pytest.mark.parametrize(
    "key", ["gpu-assigned", "gpu-allocation", "admission-order", "predicate-gpu-idx-0"]
)
def test_a_pod_without_gpus_loses_what_only_gpu_pods_get(pod: Json, key: str) -> None:
    _with_resources(pod, {})
    kept = {"tencent.com/gpu-policy": "spread", "tencent.com/unknown": "1", "a": "b"}
    pod["metadata"]["annotations"] = kept | {f"tencent.com/{key}": "true"}
    verdict = _decide(pod)
    assert verdict.label == "patched"
    assert _apply(pod, verdict)["metadata"]["annotations"] == kept
    assert verdict.warnings == (
        f"metadata.annotations[tencent.com/{key}]: dropped, the pod asks for no GPU",
    )


def test_a_gpu_pod_copied_without_its_limits_loses_all_that_we_wrote(pod: Json) -> None:
    _with_resources(pod, {})
    pod["metadata"]["annotations"] = {
        **WRITTEN_ON_ALL,
        **STAMPS,
        "tencent.com/gpu-assigned": "true",
        "tencent.com/gpu-allocation": "{}",
        "tencent.com/predicate-gpu-idx-0": "0",
    }
    verdict = _decide(pod)
    assert _apply(pod, verdict)["metadata"]["annotations"] == {}
    assert len(verdict.warnings) == 7


def test_nobody_is_blamed_when_another_webhook_removed_the_request(pod: Json) -> None:
    once = _apply(pod, _decide(pod))
    verdict = _decide(_with_resources(once, {}))
    assert _apply(once, verdict)["metadata"]["annotations"].keys().isdisjoint(STAMPS)
    assert verdict.warnings == ()


def test_a_record_beside_stamps_of_this_minute_is_told_of_all_the_same(pod: Json) -> None:
    pod["metadata"]["annotations"] = STAMPS | {"tencent.com/gpu-allocation": "{}"}
    assert _decide(_with_resources(pod, {})).warnings == (
        "metadata.annotations[tencent.com/gpu-allocation]: dropped, the pod asks for no GPU",
    )


def _never() -> OrderStamp:
    raise AssertionError("no stamp is due")


@pytest.mark.parametrize("cores", ["", "150"])
def test_no_stamp_is_taken_for_a_pod_that_does_not_stand_in_line(pod: Json, cores: str) -> None:
    _with_resources(pod, {"limits": {CORE: cores} if cores else {}})
    decide_pod(pod, names=NAMES, stamp=_never)


@pytest.mark.parametrize(
    ("resources", "messages"),
    [
        (
            {"limits": {CORE: 150}},
            [
                (
                    f"{LIMITS}[{CORE}]: Invalid value: 150: more than one card "
                    "must be a multiple of "
                    "100 (100 is one whole card): ask for 100 or 200"
                )
            ],
        ),
        (
            {"limits": {CORE: "101", MEMORY: "1"}},
            [
                (
                    f'{LIMITS}[{CORE}]: Invalid value: "101": more than one card '
                    "must be a multiple of "
                    "100 (100 is one whole card): ask for 100 or 200"
                )
            ],
        ),
        (
            {"limits": {CORE: "50"}},
            [
                (
                    f"{LIMITS}[{MEMORY}]: Required value: a shared card needs "
                    "memory: 50 of 100 cores "
                    "share a card with others, say how many memory blocks to take, at least 1"
                )
            ],
        ),
        (
            {"limits": {CORE: "50", MEMORY: "0"}},
            [
                (
                    f'{LIMITS}[{MEMORY}]: Invalid value: "0": must be at least 1: '
                    "leave it out to ask "
                    "for none"
                )
            ],
        ),
        (
            {"limits": {MEMORY: "4"}},
            [
                (
                    f"{LIMITS}[{CORE}]: Required value: memory (4) without cores: "
                    "add 1 to 99 cores "
                    "for a share of one card, or a multiple of 100 for whole cards"
                )
            ],
        ),
        *(
            (
                {"limits": {CORE: value, MEMORY: "1"}},
                [f"{LIMITS}[{CORE}]: Invalid value: {shown}: {rule}"],
            )
            for value, shown, rule in [
                ("0", '"0"', "must be at least 1: leave it out to ask for none"),
                (-5, "-5", "must be at least 1: leave it out to ask for none"),
                ("1.5", '"1.5"', "must be a whole number, it cannot be divided further"),
                ("500m", '"500m"', "must be a whole number, it cannot be divided further"),
                ("1e-1", '"1e-1"', "must be a whole number, it cannot be divided further"),
                ("half", '"half"', 'must be a whole number such as "50"'),
                (None, "null", 'must be a whole number such as "50"'),
                (["1"], "a list", 'must be a whole number such as "50"'),
                ("2147483648", '"2147483648"', "must be at most 2147483647"),
                ("1Ei", '"1Ei"', "must be at most 2147483647"),
            ]
        ),
        (
            {"limits": {CORE: "50", MEMORY: "1"}, "requests": {CORE: "40"}},
            [
                (
                    f'spec.containers[0].resources.requests[{CORE}]: Invalid value: "40": must be '
                    'equal to limits ("50"), extended resources cannot be overcommitted: leave '
                    "requests out"
                )
            ],
        ),
        (
            {"requests": {CORE: "100"}},
            [
                (
                    f'{LIMITS}[{CORE}]: Required value: requests asks for "100" '
                    "but limits does not: "
                    "extended resources are asked for in limits, write it there"
                )
            ],
        ),
        (
            {"limits": {CORE: "150", MEMORY: "x"}, "requests": {CORE: "150", MEMORY: "y"}},
            [
                (
                    f'{LIMITS}[{CORE}]: Invalid value: "150": more than one card must be a '
                    "multiple of 100 (100 is one whole card): ask for 100 or 200"
                ),
                f'{LIMITS}[{MEMORY}]: Invalid value: "x": must be a whole number such as "50"',
                (
                    f'spec.containers[0].resources.requests[{MEMORY}]: Invalid value: "y": must be '
                    'equal to limits ("x"), extended resources cannot be overcommitted: leave '
                    "requests out"
                ),
            ],
        ),
    ],
)
def test_a_request_that_can_never_be_served_is_denied_in_these_words(
    pod: Json, resources: Json, messages: list[str]
) -> None:
    verdict = _decide(_with_resources(pod, resources))
    assert [str(error) for error in verdict.errors] == messages
    assert (verdict.patch, verdict.warnings) == ((), ())


@pytest.mark.parametrize(
    "limits",
    [
        {CORE: "1", MEMORY: "1"},
        {CORE: 99, MEMORY: 96},
        {CORE: "100"},
        {CORE: "200", MEMORY: "8"},
        {CORE: "1k"},
        {CORE: "1e2"},
        {CORE: "2147483600"},
    ],
)
def test_a_request_that_can_be_served_is_allowed(pod: Json, limits: Json) -> None:
    verdict = _decide(_with_resources(pod, {"limits": limits, "requests": dict(limits)}))
    assert (verdict.label, verdict.warnings) == ("patched", ())


def test_all_errors_of_a_pod_come_at_once_in_the_order_of_its_fields(pod: Json) -> None:
    pod["metadata"]["annotations"] = ["not", "a", "mapping"]
    pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CORE: "150"}}}]
    _with_resources(pod, {"limits": {MEMORY: "1"}})
    verdict = _decide(pod)
    assert [error.path for error in verdict.errors] == [
        "metadata.annotations",
        f"spec.initContainers[0].resources.limits[{CORE}]",
        f"{LIMITS}[{CORE}]",
    ]
    assert verdict.rules == ("memory-without-cores", "not-a-mapping", "not-whole-cards")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("metadata", "x", 'metadata: Invalid value: "x": must be a mapping'),
        ("annotations", [], "metadata.annotations: Invalid value: a list: must be a mapping"),
        ("annotations", False, "metadata.annotations: Invalid value: false: must be a mapping"),
        ("annotations", "x", 'metadata.annotations: Invalid value: "x": must be a mapping'),
    ],
)
def test_metadata_that_cannot_be_annotated_is_denied(
    pod: Json, field: str, value: object, message: str
) -> None:
    if field == "metadata":
        pod["metadata"] = value
    else:
        pod["metadata"]["annotations"] = value
    assert [str(error) for error in _decide(pod).errors] == [message]


def test_what_can_hardly_be_meant_is_allowed_with_a_warning(pod: Json) -> None:
    verdict = _decide(_with_resources(pod, {"limits": {CORE: "200", MEMORY: "7"}}))
    assert verdict.label == "patched"
    assert verdict.warnings == ("container main: memory 7 on 2 cards is uneven: 1x4 + 1x3 blocks",)


def test_more_memory_than_any_card_has_is_warned_of_when_the_largest_is_known(pod: Json) -> None:
    _with_resources(pod, {"limits": {CORE: "50", MEMORY: "97"}})
    stamp = OrderStamp(TIME, "w1", 0)
    verdict = decide_pod(pod, names=NAMES, stamp=lambda: stamp, largest_card=96)
    assert verdict.label == "patched"
    assert verdict.warnings == (
        "container main: 97 memory blocks a card, the largest card known has 96",
    )
    assert _decide(pod).warnings == ()


def test_what_others_write_is_dropped_and_what_we_write_is_overwritten(pod: Json) -> None:
    pod["metadata"]["annotations"] = {
        "tencent.com/gpu-assigned": "true",
        "tencent.com/predicate-time": "1",
        "tencent.com/admission-order": "me first",
        "tencent.com/bind-order": "false",
        "tencent.com/predicate-node": "node-1",
        "tencent.com/gpu-allocation": "{}",
        "tencent.com/predicate-gpu-idx-0": "0",
        "tencent.com/predicate-gpu-idx-x": "0",
        "tencent.com/gpu-cards": "a node's, not a pod's",
        "other.com/gpu-assigned": "true",
    }
    verdict = _decide(pod)
    assert _apply(pod, verdict)["metadata"]["annotations"] == {
        "tencent.com/gpu-cards": "a node's, not a pod's",
        "other.com/gpu-assigned": "true",
        **STAMPS,
    }
    assert verdict.warnings == tuple(
        f"metadata.annotations[tencent.com/{name}]: {fate}, gpu-turnstile writes it"
        for name, fate in [
            ("admission-order", "overwritten"),
            ("bind-order", "dropped"),
            ("gpu-allocation", "dropped"),
            ("gpu-assigned", "overwritten"),
            ("predicate-gpu-idx-0", "dropped"),
            ("predicate-gpu-idx-x", "dropped"),
            ("predicate-node", "dropped"),
            ("predicate-time", "overwritten"),
        ]
    )


def test_many_supplied_annotations_are_warned_of_in_ten_lines(pod: Json) -> None:
    pod["metadata"]["annotations"] = {
        f"tencent.com/predicate-gpu-idx-{index}": "0" for index in range(1000)
    }
    verdict = _decide(pod)
    assert len(verdict.warnings) == 10
    assert verdict.warnings[-1] == "and 991 more warnings like these"
    assert _apply(pod, verdict)["metadata"]["annotations"] == STAMPS


SECOND = 10**9


@pytest.mark.parametrize(
    ("age", "warnings"), [(0, 0), (SECOND, 0), (59 * SECOND, 0), (60 * SECOND, 3), (-1, 3)]
)
def test_a_reinvocation_stamps_again_and_does_not_blame_the_user(
    pod: Json, age: int, warnings: int
) -> None:
    """Stamps that agree and are younger than any request are our own of the call before."""
    once = _apply(pod, _decide(pod))
    later = OrderStamp(TIME + age, "w2", 3)
    verdict = decide_pod(once, names=NAMES, stamp=lambda: later)
    annotations = _apply(once, verdict)["metadata"]["annotations"]
    assert annotations["tencent.com/admission-order"] == later.encode()
    assert annotations["tencent.com/predicate-time"] == str(TIME + age)
    assert len(verdict.warnings) == warnings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tencent.com/predicate-time", str(TIME + 1)),
        ("tencent.com/predicate-time", "soon"),
        ("tencent.com/predicate-time", 5),
        ("tencent.com/admission-order", "me first"),
        ("tencent.com/admission-order", None),
        ("tencent.com/gpu-assigned", "true"),
    ],
)
def test_stamps_that_do_not_agree_are_the_users(pod: Json, key: str, value: object) -> None:
    pod["metadata"]["annotations"] = {**STAMPS, key: value}
    assert len(_decide(pod).warnings) == 3


def test_another_domain_changes_every_name(pod: Json) -> None:
    names = Names("gpu.example")
    _with_resources(pod, {"limits": {names.core: "100", CORE: "150"}})
    verdict = decide_pod(pod, names=names, stamp=lambda: OrderStamp(TIME, "w1", 0))
    assert verdict.allowed
    assert [each["path"] for each in verdict.patch] == [
        "/metadata/annotations/gpu.example~1admission-order",
        "/metadata/annotations/gpu.example~1gpu-assigned",
        "/metadata/annotations/gpu.example~1predicate-time",
    ]


def _review(pod: Json, **changes: Any) -> Review:
    whole: dict[str, Any] = {
        "uid": "u",
        "target": Target("", "v1", "pods", "Pod", ""),
        "operation": "CREATE",
        "namespace": "team",
        "name": "train",
        "dry_run": False,
        "object": pod,
    }
    return Review(**(whole | changes))


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "target", [Target("", "v1", "pods", "Pod", ""), Target("", "v1", "", "Pod", "")]
)
def test_the_creation_of_a_pod_is_decided(
    pod: Json, target: Target, dry_run: bool, names: Names, stamp: Stamp
) -> None:
    review = _review(pod, target=target, dry_run=dry_run)
    assert mutate_pod(review, names=names, stamp=stamp) == _decide(pod)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"operation": "UPDATE"}, "UPDATE of v1/pods"),
        ({"operation": "DELETE", "object": None}, "DELETE of v1/pods"),
        (
            {"target": Target("", "v1", "pods", "Binding", "binding")},
            "CREATE of v1/pods/binding",
        ),
        ({"target": Target("apps", "v1", "pods", "Pod", "")}, "CREATE of apps/v1/pods"),
        (
            {"target": Target("apps", "v1", "deployments", "Deployment", "")},
            "CREATE of apps/v1/deployments",
        ),
    ],
)
def test_anything_else_passes_unread_with_a_warning(
    pod: Json, changes: dict[str, Any], what: str, names: Names
) -> None:
    verdict = mutate_pod(_review(pod, **changes), names=names, stamp=_never)
    assert verdict == Verdict(
        warnings=(f"gpu-turnstile decides only CREATE of v1/pods here: {what} passed unread",)
    )


OURS = [*STAMPS, *(f"tencent.com/{each}" for each in ("bind-order", "predicate-gpu-idx-1"))]
VALUE = (
    st.none() | st.booleans() | st.sampled_from(["false", "", "100", "150", "1"]) | st.integers()
)
ANY = st.recursive(
    VALUE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)
RESOURCES = st.dictionaries(st.sampled_from([CORE, MEMORY, "cpu"]), VALUE, max_size=3)
CONTAINER = ANY | st.fixed_dictionaries(
    {},
    optional={
        "name": ANY,
        "restartPolicy": st.sampled_from(["Always", "Never", 1]),
        "resources": ANY | st.fixed_dictionaries({}, optional={"limits": RESOURCES | ANY}),
    },
)
GPU = {"name": "main", "resources": {"limits": {CORE: "100"}}}
POD = st.fixed_dictionaries(
    {},
    optional={
        "metadata": ANY
        | st.fixed_dictionaries(
            {"name": st.text()},
            optional={
                "annotations": ANY
                | st.dictionaries(st.sampled_from(OURS) | st.text(), ANY, max_size=6)
            },
        ),
        "spec": ANY
        | st.fixed_dictionaries(
            {"containers": st.just([GPU]) | ANY | st.lists(CONTAINER, max_size=3)},
            optional={"initContainers": ANY | st.lists(CONTAINER, max_size=2)},
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(POD)
def test_whatever_the_pod_the_patch_applies_and_touches_only_our_annotations(pod: Json) -> None:
    before = copy.deepcopy(pod)
    verdict = _decide(pod)
    assert pod == before
    assert len(verdict.warnings) <= 10
    assert all(len(each) <= 120 and each.isprintable() for each in verdict.warnings)
    if not verdict.patch:
        return
    after = _apply(pod, verdict)
    found, given_ = after["metadata"], before.get("metadata") or {}
    stamps = STAMPS if asks_for_gpus(pod.get("spec"), NAMES) else {}
    assert stamps.items() <= found["annotations"].items()
    others = {
        key: value
        for key, value in (given_.get("annotations") or {}).items()
        if not key.startswith("tencent.com/")
    }
    assert others.items() <= {k: v for k, v in found["annotations"].items() if k in others}.items()
    if stamps:
        assert set(found["annotations"]) == set(others) | set(STAMPS)
    assert {**found, "annotations": 0} == {**given_, "annotations": 0}
    assert after.get("spec") == before.get("spec")


def test_a_pod_of_a_thousand_containers_is_decided(pod: Json) -> None:
    pod["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": {CORE: "200", MEMORY: "7"}}}
        for index in range(1000)
    ]
    verdict = _decide(pod)
    assert _apply(pod, verdict)["metadata"]["annotations"].items() >= STAMPS.items()
    assert verdict.warnings[-1] == "and 991 more warnings like these"
