import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from tests.examples import share
from tests.webhook.admission.building import Json, review_of
from webhook.admission.decision import Decision
from webhook.admission.options import DEFAULTS, AdmissionOptions, DefaultMemory
from webhook.admission.privileged import Privileged
from webhook.admission.reviews import Review, ReviewedResource
from webhook.admission.workloads import validate_workload

NAMES = Names()
CORE, MEMORY = NAMES.core, NAMES.memory
TEMPLATE = "spec.template"
KINDS = [
    ("apps", "deployments", "Deployment", TEMPLATE),
    ("apps", "statefulsets", "StatefulSet", TEMPLATE),
    ("apps", "daemonsets", "DaemonSet", TEMPLATE),
    ("apps", "replicasets", "ReplicaSet", TEMPLATE),
    ("", "replicationcontrollers", "ReplicationController", TEMPLATE),
    ("batch", "jobs", "Job", TEMPLATE),
    ("batch", "cronjobs", "CronJob", "spec.jobTemplate.spec.template"),
    ("", "podtemplates", "PodTemplate", "template"),
]


def _template(**limits: object) -> Json:
    names = {"core": CORE, "memory": MEMORY}
    resources = {"limits": {names[key]: value for key, value in limits.items()}}
    return {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": resources}]}}


def _workload(path: str, template: object) -> Json:
    found = template
    for step in reversed(path.split(".")):
        found = {step: found}
    assert isinstance(found, dict)
    return {"metadata": {"name": "w"}, **found}


def _review(new: Json | None, old: Json | None = None, *, kind: int = 0, **changes: Any) -> Review:
    group, plural, name, _ = KINDS[kind]
    changes = {"operation": "UPDATE" if old is not None else "CREATE"} | changes
    return review_of(
        ReviewedResource(group, "v1", plural, name, ""), new, old_object=old, **changes
    )


def _validate(review: Review, options: AdmissionOptions = DEFAULTS) -> Decision:
    return validate_workload(review, names=NAMES, options=options)


@pytest.mark.parametrize("workload", KINDS, ids=lambda each: each[2])
@pytest.mark.parametrize(("operation", "named"), [("CREATE", "kind"), ("UPDATE", "resource")])
def test_the_rules_of_pods_hold_with_the_path_from_the_root(
    workload: tuple[str, str, str, str], operation: str, named: str
) -> None:
    group, plural, kind, path = workload
    target = ReviewedResource(
        group, "v1", "" if named == "kind" else plural, "" if named == "resource" else kind, ""
    )
    new = _workload(path, _template(core="150"))
    verdict = _validate(_review(new, target=target, operation=operation))
    (error,) = verdict.errors
    assert error.path == f"{path}.spec.containers[0].resources.limits[{CORE}]"
    assert error.rule == "not-whole-cards"
    assert verdict.patch == ()
    good = _workload(path, _template(core="100"))
    assert _validate(_review(good, target=target, operation=operation)) == Decision()


@pytest.mark.parametrize("workload", KINDS, ids=lambda each: each[2])
def test_a_wish_outside_of_the_template_has_a_warning_with_where_to_write_it(
    workload: tuple[str, str, str, str],
) -> None:
    group, plural, kind, path = workload
    target = ReviewedResource(group, "v1", plural, kind, "")
    new = _workload(path, _template(core="100"))
    names = ("use-gpu-type", "gpu-assigned", "gpu-cards-main")
    new["metadata"] |= {
        "annotations": {f"tencent.com/{each}": "2" for each in names},
        "labels": {"hami.io/gpu-scheduler-policy": "spread", "app": "x"},
    }
    where = f"in {path}.metadata.annotations, not in metadata"
    rights = ("use-gpu-type", "gpu-cards-main", "gpu-policy")
    expected = [f"write tencent.com/{right} {where}" for right in rights]
    if kind == "CronJob":
        annotations = {"tencent.com/use-gpu-uuid": "GPU-1"}
        new["spec"]["jobTemplate"]["metadata"] = {"annotations": annotations}
        expected.append(
            f"write tencent.com/use-gpu-uuid in {path}.metadata.annotations, not in "
            "spec.jobTemplate.metadata"
        )
    assert _validate(_review(new, target=target)) == Decision(warnings=tuple(expected))


def test_warnings_of_pods_have_the_path_of_the_template() -> None:
    template = _template(core="200", memory="7")
    template["spec"]["runtimeClassName"] = "kata"
    names = ("gpu-assigned", "bind-order", "vcuda-core", "use-gputype", "gpu-cards")
    template["metadata"] = {
        "annotations": {f"tencent.com/{each}": "2" for each in names},
        "labels": {"tencent.com/gpu-policy": "spread"},
    }
    annotations = "spec.template.metadata.annotations"
    options = AdmissionOptions(3, runtime_class="nvidia")
    assert set(_validate(_review(_workload(TEMPLATE, template)), options).warnings) == {
        "container main: memory 7 lowered to 6, all that its whole cards have",
        f"{annotations}[tencent.com/vcuda-core]: deprecated and ignored: use limits",
        f"{annotations}[tencent.com/bind-order]: dropped, gpu-turnstile writes it",
        f"{annotations}[tencent.com/gpu-assigned]: overwritten, gpu-turnstile writes it",
        "write tencent.com/use-gpu-type: gpu-turnstile does not read tencent.com/use-gputype",
        "write tencent.com/gpu-cards-main: gpu-turnstile does not read tencent.com/gpu-cards",
        f"write tencent.com/gpu-policy in {annotations}, not in labels",
        "runtimeClassName kata, not nvidia: it may lack libcuda, then CUDA and HAMi-core fail",
    }


@pytest.mark.parametrize("broken", [None, [], "x", {"template": None}, {"template": {"spec": 5}}])
def test_an_object_without_a_template_is_left_to_the_api_server(broken: object) -> None:
    assert _validate(_review({"spec": broken})) == Decision()


def test_a_template_whose_pods_will_get_memory_passes_with_the_same_warning() -> None:
    new = _workload(TEMPLATE, _template(core="50"))
    assert not _validate(_review(new)).allowed
    options = AdmissionOptions(96, DefaultMemory.PROPORTIONAL)
    expected = Decision(
        warnings=("container main: no memory: gets 48 blocks, 50% of the largest card (96)",)
    )
    assert _validate(_review(new), options) == _validate(_review(new, new), options) == expected


def test_an_update_with_a_new_error_is_denied_with_all_errors() -> None:
    old = _workload(TEMPLATE, _template(core="150"))
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["containers"].append(
        {"name": "more", "resources": {"limits": {CORE: "50"}}}
    )
    assert [each.rule for each in _validate(_review(new, old)).errors] == [
        "not-whole-cards",
        "share-without-memory",
    ]


def test_an_update_is_not_denied_for_earlier_errors() -> None:
    """Or a workload older than this webhook could neither be scaled to zero nor finalized."""
    old = _workload(TEMPLATE, _template(core="150"))
    old["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    new = {**old, "spec": {**old["spec"], "replicas": 0}}
    options = AdmissionOptions(privileged=Privileged.DENY)
    assert len(_validate(_review(new), options).errors) == 2
    verdict = _validate(_review(new, old), options)
    assert verdict.allowed
    path = "its pods are denied, as before: spec.template.spec.containers[0]."
    assert [each.startswith(path) for each in verdict.warnings].count(True) == 2


FIELDS = ("spec", "template", "metadata", "annotations", "containers", "resources", "limits")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["100", "150", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*FIELDS, CORE, MEMORY, "a~b/c"]), inner, max_size=3)
    ),
    max_leaves=12,
)
TEMPLATES = ANY | st.builds(
    lambda template, metadata: {**template, "metadata": metadata},
    st.builds(_template, core=ANY, memory=ANY),
    ANY,
)


@settings(max_examples=share(150))
@given(st.integers(0, len(KINDS) - 1), TEMPLATES, st.none() | TEMPLATES)
def test_any_workload_has_a_verdict_without_a_patch(
    kind: int, template: object, old: object
) -> None:
    path = KINDS[kind][3]
    new = _workload(path, template)
    before = copy.deepcopy(new)
    review = _review(new, None if old is None else _workload(path, old), kind=kind)
    verdict = _validate(review)
    assert new == before
    assert verdict.patch == ()
    assert all(each.path.startswith(f"{path}.") for each in verdict.errors)
    assert len(verdict.warnings) <= 10
    assert all(len(each) <= 120 for each in verdict.warnings)
