import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.requests import asks_for_gpus
from contract.stamps import OrderStamp
from tests.examples import share
from tests.webhook.admission.building import (
    ANY,
    ORDER,
    TIME,
    Json,
    applied,
    decide,
    no_stamp,
    review_of,
    stamp,
)
from webhook.admission.decision import Decision
from webhook.admission.options import AdmissionOptions
from webhook.admission.pods import decide_pod, mutate_pod
from webhook.admission.privileged import Privileged
from webhook.admission.reviews import ReviewedResource

NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
STAMPS = {
    "tencent.com/predicate-time": str(TIME),
    "tencent.com/admission-order": ORDER,
    "tencent.com/gpu-assigned": "false",
}
LIMITS = "spec.containers[0].resources.limits"


def _with_resources(pod: Json, resources: object) -> Json:
    pod["spec"]["containers"][0]["resources"] = resources
    return pod


def test_a_gpu_pod_is_stamped_and_not_changed_otherwise(pod: Json) -> None:
    verdict = decide(pod)
    assert (verdict.label, verdict.warnings) == ("patched", ())
    expected = copy.deepcopy(pod)
    expected["metadata"]["annotations"] |= STAMPS
    assert applied(pod, verdict) == expected


BY_BINDING = {f"tencent.com/{key}": "1" for key in ("predicate-time", "bind-order")} | {
    "tencent.com/predicate-node": "n1"
}
"""Annotations that every pod gets by its Binding."""


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"tencent.com/use-gpu-type": "a100", "tencent.com/gpu-policy": "soon"},
        {"tencent.com/vcuda-core": "50", "tencent.com/x": "1", "example.com/gpu-assigned": "1"},
        BY_BINDING,
    ],
    ids=["none", "wishes", "not ours", "a copy of a plain pod that ran"],
)
def test_a_pod_without_gpus_is_not_changed(pod: Json, annotations: Json) -> None:
    _with_resources(pod, {"limits": {"cpu": "1"}})
    pod["metadata"]["annotations"] = annotations
    assert decide(pod, stamp=no_stamp) == Decision()


def test_resources_whose_names_are_nearly_ours_are_denied_or_warned_of(pod: Json) -> None:
    pod["metadata"]["annotations"] = {"tencent.com/gpu-assigned": "true"}
    theirs = {"limits": {"example.com/vcuda-core": "50"}}
    verdict = decide(_with_resources(pod, theirs))
    assert verdict.warnings[0] == f"write {CORE}, example.com/vcuda-core is not served here"
    assert applied(pod, verdict)["metadata"]["annotations"] == {}
    for limits in ({CORE: "50", "tencent.com/vcuda-mem": "8"}, {"tencent.com/vcuda-mem": "8"}):
        (error,) = decide(_with_resources(pod, {"limits": limits})).errors
        assert str(error) == (
            f'{LIMITS}[tencent.com/vcuda-mem]: Invalid value: "8": no node has such a resource: '
            f"write {MEMORY}"
        ), "that memory is missing is no second error"


def test_a_misspelt_resource_hides_no_error_of_another_kind_or_container(pod: Json) -> None:
    pod["spec"]["containers"].append({"name": "b", "resources": {"limits": {MEMORY: "8"}}})
    misspelt = {"limits": {"tencent.com/vcuda-cores": "50", MEMORY: "x"}}
    assert [each.rule for each in decide(_with_resources(pod, misspelt)).errors] == [
        "misspelt",
        "not-a-number",
        "memory-without-cores",
    ]


def test_other_systems_resources_have_a_warning_but_not_nvidias_alone(pod: Json) -> None:
    theirs = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}}
    memory = f"write {MEMORY} (in blocks): gpu-turnstile does not serve nvidia.com/gpumem"
    cores = f"write {CORE} (100 is one card): gpu-turnstile does not serve nvidia.com/gpu"
    both = Decision(warnings=(cores, memory))
    assert decide(_with_resources(pod, theirs), stamp=no_stamp) == both
    alone = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}}
    assert decide(_with_resources(pod, alone), stamp=no_stamp) == Decision()
    mixed = {"limits": {"nvidia.com/gpu": "1", MEMORY: "8"}}
    denied = decide(_with_resources(pod, mixed))
    assert (denied.rules, denied.warnings) == (("memory-without-cores",), (cores,))


def test_a_wish_by_a_wrong_name_or_as_a_label_has_a_warning_with_what_to_write(pod: Json) -> None:
    keys = ("tencent.com/use-gputype", "hami.io/gpu-scheduler-policy", "gpu-fraction", "other")
    pod["metadata"] |= {
        "annotations": dict.fromkeys(keys, "h100") | {"tencent.com/gpu-policy": "spread"},
        "labels": {"tencent.com/gpu-link": "numa", "nvidia.com/use-gputype": "h100", "app": "x"},
    }
    assert decide(pod).warnings == (
        f"write {CORE} in limits (100 is one card): gpu-turnstile does not serve gpu-fraction",
        "write tencent.com/use-gpu-type: gpu-turnstile does not read tencent.com/use-gputype",
        "write tencent.com/gpu-policy: gpu-turnstile does not read hami.io/gpu-scheduler-policy",
        "write tencent.com/gpu-link in metadata.annotations, not in labels",
        "write tencent.com/use-gpu-type in metadata.annotations, not in labels",
    )
    _with_resources(pod, {})
    assert decide(pod, stamp=no_stamp).warnings == (
        f"write {CORE} in limits (100 is one card): gpu-turnstile does not serve gpu-fraction",
    ), "wishes of a pod without GPUs are not checked"


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_privileged_container_of_a_gpu_pod_is_warned_of_or_denied(pod: Json, field: str) -> None:
    """It sees every card, even if another container requests the GPU."""
    contexts: list[object] = [None, [], "x", {}, {"privileged": "true"}]
    for context in contexts:
        pod["spec"]["containers"][0]["securityContext"] = context
        assert decide(pod).warnings == ()
    plain = {"name": "helper", "securityContext": {"privileged": True}}
    pod["spec"].setdefault(field, []).append(plain)
    verdict = decide(pod)
    assert verdict.allowed
    assert verdict.warnings == ("container helper: privileged, it sees every card of its node",)
    denied = decide(pod, AdmissionOptions(privileged=Privileged.DENY), stamp=no_stamp)
    at = len(pod["spec"][field]) - 1
    assert [str(each) for each in denied.errors] == [
        (
            f"spec.{field}[{at}].securityContext.privileged: Invalid value: true: a privileged "
            "container sees every card of its node, and this cluster denies it in GPU pods: "
            "remove it"
        )
    ]
    pod["spec"]["containers"][0].pop("resources")
    for treatment in Privileged:
        options = AdmissionOptions(privileged=treatment)
        assert decide(pod, options, stamp=no_stamp) == Decision()


def test_a_gpu_pod_copied_without_its_limits_loses_all_our_annotations(pod: Json) -> None:
    kept = {"tencent.com/gpu-policy": "spread", "tencent.com/unknown": "1", "a": "b"}
    ran = {"tencent.com/gpu-assigned": "true", "tencent.com/gpu-allocation": "{}"}
    ran["tencent.com/predicate-gpu-idx-0"] = "0"
    pod["metadata"]["annotations"] = {**kept, **BY_BINDING, **STAMPS, **ran}
    verdict = decide(_with_resources(pod, {}))
    assert applied(pod, verdict)["metadata"]["annotations"] == kept
    assert set(verdict.warnings) == {
        f"metadata.annotations[{key}]: dropped, the pod requests no GPU"
        for key in {**BY_BINDING, **STAMPS, **ran}
    }
    assert len(verdict.warnings) == 7


def test_a_request_that_can_never_be_served_is_denied(pod: Json) -> None:
    """All errors at once, in the order of fields; every rule: tests/contract/test_demand.py."""
    pod["metadata"]["annotations"] = ["not", "a", "mapping"]
    pod["spec"]["initContainers"] = [{"name": "first", "resources": {"limits": {CORE: "150"}}}]
    verdict = decide(_with_resources(pod, {"limits": {CORE: "50", MEMORY: "x"}}), stamp=no_stamp)
    assert [error.path for error in verdict.errors] == [
        "metadata.annotations",
        f"spec.initContainers[0].resources.limits[{CORE}]",
        f"{LIMITS}[{MEMORY}]",
    ]
    assert str(verdict.errors[-1]) == (
        f'{LIMITS}[{MEMORY}]: Invalid value: "x": must be a whole number such as "50"'
    )
    assert verdict.rules == ("not-a-mapping", "not-a-number", "not-whole-cards")
    assert (verdict.patch, verdict.warnings) == ((), ())


def test_annotations_of_others_are_dropped_and_ours_are_overwritten(pod: Json) -> None:
    kept = {
        "tencent.com/gpu-cards-main": "1",
        "tencent.com/gpu-cordoned": "a node's",
        "other.com/gpu-assigned": "true",
    }
    ours = {"admission-order", "gpu-assigned", "predicate-time"}
    theirs = {"bind-order", "gpu-allocation", "predicate-gpu-idx-0", "predicate-node"}
    fates = {each: "overwritten" if each in ours else "dropped" for each in sorted(ours | theirs)}
    pod["metadata"]["annotations"] = kept | {f"tencent.com/{name}": "1" for name in fates}
    verdict = decide(pod)
    assert applied(pod, verdict)["metadata"]["annotations"] == kept | STAMPS
    assert verdict.warnings == tuple(
        f"metadata.annotations[tencent.com/{name}]: {fate}, gpu-turnstile writes it"
        for name, fate in fates.items()
    )


SECOND = 10**9


@pytest.mark.parametrize(
    ("age", "warnings"), [(0, 0), (SECOND, 0), (59 * SECOND, 0), (60 * SECOND, 3), (-1, 3)]
)
def test_a_second_call_stamps_again_without_a_warning(pod: Json, age: int, warnings: int) -> None:
    """Stamps that agree and are younger than any request are our own of the call before."""
    once = applied(pod, decide(pod))
    later = OrderStamp(TIME + age, "w2", 3)
    verdict = decide(once, stamp=lambda: later)
    annotations = applied(once, verdict)["metadata"]["annotations"]
    assert annotations["tencent.com/admission-order"] == later.encode()
    assert annotations["tencent.com/predicate-time"] == str(TIME + age)
    assert len(verdict.warnings) == warnings
    if not age:  # nor if another webhook has removed the request
        assert decide(_with_resources(once, {})).warnings == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("predicate-time", value) for value in (str(TIME + 1), "soon", 5)),
        *(("admission-order", "me first"), ("gpu-assigned", "true")),
    ],
)
def test_stamps_that_do_not_agree_are_the_authors(pod: Json, key: str, value: object) -> None:
    pod["metadata"]["annotations"] = {**STAMPS, f"tencent.com/{key}": value}
    assert len(decide(pod).warnings) == 3


def test_another_domain_changes_every_name(pod: Json) -> None:
    names = Names("gpu.example")
    _with_resources(pod, {"limits": {names.core: "100", CORE: "150"}})
    verdict = decide_pod(pod, names=names, stamp=stamp)
    assert [each["path"].rpartition("/")[2] for each in verdict.patch] == [
        f"gpu.example~1{name}" for name in ("admission-order", "gpu-assigned", "predicate-time")
    ]


@pytest.mark.parametrize(("plural", "dry_run"), [("pods", False), ("pods", True), ("", False)])
def test_the_creation_of_a_pod_is_decided(pod: Json, plural: str, dry_run: bool) -> None:
    review = review_of(ReviewedResource("", "v1", plural, "Pod", ""), pod, dry_run=dry_run)
    assert mutate_pod(review, names=NAMES, stamp=stamp) == decide(pod)


OURS = [*STAMPS, *(f"tencent.com/{each}" for each in ("bind-order", "predicate-gpu-idx-1"))]
RESOURCES = st.dictionaries(
    st.sampled_from([CORE, MEMORY, "cpu"]), ANY | st.sampled_from(["100", "1"]), max_size=3
)
CONTAINER = ANY | st.fixed_dictionaries(
    {},
    optional={
        "name": ANY,
        "restartPolicy": st.sampled_from(["Always", "Never", 1]),
        "resources": ANY | st.fixed_dictionaries({}, optional={"limits": RESOURCES | ANY}),
    },
)
GPU = {"name": "main", "resources": {"limits": {CORE: "100"}}}
ANNOTATIONS = st.dictionaries(st.sampled_from(OURS) | st.text(), ANY, max_size=6)
METADATA = st.fixed_dictionaries({"name": st.text()}, optional={"annotations": ANY | ANNOTATIONS})
SPEC = st.fixed_dictionaries(
    {"containers": st.just([GPU]) | ANY | st.lists(CONTAINER, max_size=3)},
    optional={"initContainers": ANY | st.lists(CONTAINER, max_size=2)},
)


@settings(max_examples=share(150))
@given(st.fixed_dictionaries({}, optional={"metadata": ANY | METADATA, "spec": ANY | SPEC}))
def test_the_patch_of_any_pod_applies_and_changes_only_our_annotations(pod: Json) -> None:
    before = copy.deepcopy(pod)
    verdict = decide(pod)
    assert pod == before
    assert len(verdict.warnings) <= 10
    assert all(len(each) <= 120 and each.isprintable() for each in verdict.warnings)
    if not verdict.patch:
        return
    after = applied(pod, verdict)
    found, given_ = after["metadata"], before.get("metadata") or {}
    stamps = STAMPS if asks_for_gpus(pod.get("spec"), NAMES) else {}
    assert stamps.items() <= found["annotations"].items()
    annotations = (given_.get("annotations") or {}).items()
    others = {key: value for key, value in annotations if not key.startswith("tencent.com/")}
    assert others == {key: found["annotations"][key] for key in others}
    if stamps:
        assert set(found["annotations"]) == set(others) | set(STAMPS)
    assert {**found, "annotations": 0} == {**given_, "annotations": 0}
    assert after.get("spec") == before.get("spec")


def test_a_pod_of_a_thousand_containers_and_annotations_is_decided(pod: Json) -> None:
    pod["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": {CORE: "200", MEMORY: "7"}}}
        for index in range(1000)
    ]
    annotations = {f"tencent.com/predicate-gpu-idx-{n}": "" for n in range(1000)}
    pod["metadata"]["annotations"] = annotations
    verdict = decide(pod)
    assert applied(pod, verdict)["metadata"]["annotations"] == STAMPS
    assert verdict.warnings[9:] == ("and 991 more warnings like these",)
    pod["metadata"]["annotations"] = {f"tencent.com/use-gpu-type{n}": "h" for n in range(5000)}
    assert decide(pod).warnings[9:] == ("and 247 more warnings like these",), "a few are read"


OUR_SCHEDULER = "gpu-turnstile-scheduler"
OUR_OPTIONS = AdmissionOptions(scheduler_name=OUR_SCHEDULER)


@pytest.mark.parametrize("given", [None, "", "default-scheduler"])
def test_a_gpu_pod_without_a_scheduler_gets_ours(pod: Json, given: str | None) -> None:
    """An API server fills in the default one before its call: both are equal."""
    if given is not None:
        pod["spec"]["schedulerName"] = given
    verdict = decide(pod, OUR_OPTIONS)
    assert applied(pod, verdict)["spec"] == pod["spec"] | {"schedulerName": OUR_SCHEDULER}
    assert verdict.warnings == ()
    assert "schedulerName" not in str(decide(pod).patch)
    for limits in ({"cpu": "1"}, {CORE: "150"}):  # nor that of a pod that we do not schedule
        assert decide(_with_resources(pod, {"limits": limits}), OUR_OPTIONS).patch == ()


@pytest.mark.parametrize("given", ["volcano", OUR_SCHEDULER, "default-scheduler-2"])
def test_a_gpu_pod_that_names_a_scheduler_keeps_it(pod: Json, given: str) -> None:
    pod["spec"]["schedulerName"] = given
    assert decide(pod, OUR_OPTIONS) == decide(pod)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "nvidia"), ({"runtimeClassName": "kata"}, "kata")]
)
def test_a_gpu_pod_without_a_runtime_class_gets_ours(pod: Json, given: Json, expected: str) -> None:
    pod["spec"] |= given
    options = AdmissionOptions(runtime_class="nvidia")
    verdict = decide(pod, options)
    assert applied(pod, verdict)["spec"] == pod["spec"] | {"runtimeClassName": expected}
    assert len(verdict.warnings) == len(given)
    assert decide(_with_resources(pod, {}), options) == Decision()
