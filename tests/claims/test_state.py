"""Which templates are made, replaced and swept, by the pods that name them."""

from typing import Any

import pytest
from hypothesis import given

from claims.state import Plan, TemplateState, read_template
from contract.claims import CLAIM, SHAPE_LABEL, read_pod_claim, shape_of
from contract.names import Names
from tests.examples import any_json

NAMES = Names()
Json = dict[str, Any]
ELSEWHERE = "gpu-turnstile-0123456789abcdef"


def make_pod(name: str, cores: int = 30, memory: str = "8", **changes: Any) -> Json:
    """Make a pod that waits for its claim, and names the template of its limits."""
    limits = {NAMES.core: str(cores), NAMES.memory: memory}
    spec: Json = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    claim = read_pod_claim({"spec": spec}, NAMES)
    assert claim is not None
    template = changes.pop("template", claim.template)
    spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"} | changes
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def with_claim(pod: Json) -> Json:
    statuses = [{"name": CLAIM, "resourceClaimName": "x"}]
    return {**pod, "status": {"resourceClaimStatuses": statuses}}


def make_template(pod: Json, namespace: str = "team", **spec: Any) -> Json:
    claim = read_pod_claim(pod, NAMES)
    assert claim is not None
    labels = {SHAPE_LABEL: shape_of(claim.template)}
    uid = f"{namespace}-{claim.template[-4:]}"
    metadata = {"name": claim.template, "namespace": namespace, "uid": uid, "labels": labels}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata,
        "spec": spec or dict(claim.spec),
    }


@pytest.fixture
def state() -> TemplateState:
    return TemplateState(NAMES)


def put(state: TemplateState, *objects: Json) -> None:
    for obj in objects:
        found = state.read_pod(obj) if obj["kind"] == "Pod" else read_template(obj)
        assert found is not None
        state.put(found)


def plan(state: TemplateState, now: float = 0.0, most: int = 500) -> Plan:
    return state.plan(now, most=most, unused=3600)


def test_a_missing_template_is_made_once_for_all_waiting_pods(state: TemplateState) -> None:
    deleted = make_pod("e", 60, deletionTimestamp="2026-01-01T00:00:00Z")  # it gets no claim
    other = [{"name": "other", "resourceClaimName": "x"}]
    second = make_pod("b") | {"status": {"resourceClaimStatuses": other}}
    waiting = make_pod("a"), second, make_pod("c", 40)
    put(state, *waiting, with_claim(make_pod("d", 50)), deleted)
    assert {key: [each.name for each in pods] for key, pods in plan(state).create.items()} == {
        ("team", make_template(make_pod("a"))["metadata"]["name"]): ["a", "b"],
        ("team", make_template(make_pod("c", 40))["metadata"]["name"]): ["c"],
    }
    put(state, make_template(make_pod("a")), make_template(make_pod("c", 40)))
    assert plan(state) == Plan()


def test_a_pod_that_names_the_template_of_other_limits_gets_none(state: TemplateState) -> None:
    no_limits = make_pod("b")
    no_limits["spec"]["containers"][0]["resources"] = {}
    put(state, make_pod("a", template=ELSEWHERE), no_limits)
    found = plan(state)
    assert found.create == {}
    assert [(each.name, each.own != "") for each in found.differing] == [("a", True), ("b", False)]


def test_a_namespace_has_a_cap(state: TemplateState) -> None:
    used = make_pod("x", 10)
    put(state, with_claim(used), make_template(used), *(make_pod(f"p{n}", n) for n in (1, 2, 3)))
    put(state, make_pod("other", 4, namespace="quiet"))
    found = plan(state, most=2)
    assert [each.name for pods in found.create.values() for each in pods] == ["p1", "other"]
    assert [each.name for each in found.above_cap] == ["p2", "p3"]


def test_unused_templates_make_room_below_the_cap_at_once(state: TemplateState) -> None:
    used, unused, wanted = (make_pod(f"p{each}", each) for each in (1, 2, 3))
    elsewhere = make_template(unused, "quiet")
    put(state, with_claim(used), make_template(used), make_template(unused), elsewhere)
    put(state, wanted, make_pod("p4", 4))
    found = plan(state, most=2)
    assert [each.key for each in found.sweep] == [
        ("team", make_template(unused)["metadata"]["name"])
    ]
    assert (found.create, found.above_cap) == ({}, [])
    state.drop(make_template(unused)["metadata"]["uid"])
    found = plan(state, most=2)
    assert [each.name for pods in found.create.values() for each in pods] == ["p3"]
    assert [each.name for each in found.above_cap] == ["p4"]


def test_a_template_with_another_spec_is_replaced_and_one_with_defaults_is_not(
    state: TemplateState,
) -> None:
    pod = make_pod("a", memory="16000")
    template = make_template(pod)
    exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["capacity"]["requests"]["memory"] == "16k"  # as the API server writes it
    template["spec"]["metadata"] = {}  # so does it
    exactly["adminAccess"] = False
    put(state, pod, template)
    assert plan(state) == Plan()
    exactly["capacity"]["requests"]["cores"] = "100"
    put(state, template)
    key = ("team", template["metadata"]["name"])
    assert plan(state).replace.keys() == {key}
    put(state, make_template(pod, spec={}))
    assert plan(state).replace.keys() == {key}
    # Pods that have their claim need no template.
    put(state, with_claim(pod))
    assert plan(state) == Plan()


def test_a_template_is_swept_when_no_pod_has_named_it_for_an_hour(state: TemplateState) -> None:
    pod = with_claim(make_pod("a"))
    kept = make_template(make_pod("b", 40))
    kept["metadata"]["labels"] = {}  # a user keeps it
    put(state, pod, make_template(pod), make_template(pod, "quiet"), kept)
    assert plan(state, 0) == Plan()
    state.drop("uid-a")
    assert plan(state, 10) == Plan()
    assert [each.key[0] for each in plan(state, 3600).sweep] == ["quiet"]
    # A pod that started and ended between two plans counts, too.
    put(state, pod)
    state.drop("uid-a")
    assert [each.key[0] for each in plan(state, 3610).sweep] == ["quiet"]
    assert [each.key[0] for each in plan(state, 7209).sweep] == ["quiet"]
    assert [each.key[0] for each in plan(state, 7210).sweep] == ["team", "quiet"]
    state.drop(make_template(pod, "quiet")["metadata"]["uid"])
    assert [each.key[0] for each in plan(state, 7210).sweep] == ["team"]
    # Another one of that name is new: a pod that is not known here yet needs it.
    again = make_template(pod, "team")
    state.drop(again["metadata"]["uid"])
    again["metadata"]["uid"] = "new"
    put(state, again)
    assert plan(state, 7220).sweep == []


def test_other_pods_and_templates_are_not_read(state: TemplateState) -> None:
    assert state.read_pod({"metadata": {"name": "a"}, "spec": {}}) is None
    other = {"metadata": {"name": "gpu-turnstile-x", "namespace": "team", "uid": "u"}}
    assert read_template(other) is None


@given(any_json("spec", "devices", "requests", "exactly", "count"))
def test_any_spec_is_compared(found: Any) -> None:
    state = TemplateState(NAMES)
    pod = make_pod("a")
    put(state, pod, make_template(pod) | {"spec": found})
    assert len(plan(state).replace) == 1
