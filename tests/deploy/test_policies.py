"""The policies' CEL, evaluated on requests: who may change what of a pod and of a node."""

import pytest
from celpy.adapter import json_to_cel

from contract.names import Names
from tests.deploy.manifests import Json, base, find
from tests.deploy.policies import Update, denials, evaluate
from tests.deploy.policy_examples import NODES, PODS, Example

OBJECTS = base()
POLICIES = [each for each in OBJECTS if each["kind"] == "ValidatingAdmissionPolicy"]


def _policies(resource: str) -> list[Json]:
    return [
        each
        for each in POLICIES
        if resource in each["spec"]["matchConstraints"]["resourceRules"][0]["resources"]
    ]


def _pod(example: Example) -> Json:
    spec: Json = {"containers": [{"name": "main", "image": "none"}]}
    if example.bound:
        spec["nodeName"] = example.bound
    metadata: Json = {"name": "p", "namespace": "default"}
    if example.annotations:
        metadata["annotations"] = dict(example.annotations)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _node(example: Example) -> Json:
    made = _pod(example)
    made["metadata"]["name"] = example.bound
    return made | {"kind": "Node", "spec": {}}


def _check(policies: list[Json], update: Update, denied: str) -> None:
    found = [message for policy in policies for message in denials(policy, update)]
    if denied:
        assert any(denied in message for message in found), found
    else:
        assert found == []


@pytest.mark.parametrize("example", PODS, ids=lambda each: each.title)
def test_who_may_change_what_of_a_pod(example: Example) -> None:
    _check(_policies("pods"), example.update(_pod(example)), example.denied)


@pytest.mark.parametrize("example", NODES, ids=lambda each: each.title)
def test_who_may_change_what_of_a_node(example: Example) -> None:
    _check(_policies("nodes"), example.update(_node(example)), example.denied)


@pytest.mark.parametrize("what", ["gpu_assigned", "gpu_allocation", "admission_order"])
def test_a_binding_does_not_bring_what_others_write(what: str) -> None:
    names = Names()
    policy = find(OBJECTS, "ValidatingAdmissionPolicy", "gpu-turnstile-bindings")
    stamps = {names.bind_order: "1", names.predicate_node: "n1", names.predicate_gpu_idx(0): "0"}
    plain: Json = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    stamped = plain | {"metadata": {"name": "p", "annotations": stamps}}
    forged = plain | {"metadata": {"name": "p", "annotations": {getattr(names, what): "x"}}}
    assert denials(policy, Update("system:kube-scheduler", {}, plain)) == []
    assert denials(policy, Update("system:kube-scheduler", {}, stamped)) == []
    (message,) = denials(policy, Update("system:kube-scheduler", {}, forged))
    assert message.startswith("a Binding cannot bring")


def test_every_policy_is_bound_and_denies() -> None:
    bindings = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in OBJECTS
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bindings == {each["metadata"]["name"]: ["Deny", "Audit"] for each in POLICIES}


def test_every_way_to_a_pods_annotations_is_watched() -> None:
    ways = {
        tuple(each["spec"]["matchConstraints"]["resourceRules"][0]["resources"])
        for each in _policies("pods")
    }
    assert ways == {("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")}


def test_the_policies_know_every_annotation_of_the_contract() -> None:
    """A new one must be put under one of the rules, or nobody guards it."""
    names, text = Names(), str(find(OBJECTS, "ValidatingAdmissionPolicy", _GUARD))
    stamped = {names.predicate_time, names.predicate_node, names.predicate_gpu_idx_prefix}
    for key in _pod_annotations(names) - stamped:
        assert f"'{key.removeprefix(names.domain + '/')}'" in text
    assert all(each.startswith(f"{names.domain}/predicate-") for each in stamped)


_GUARD = "gpu-turnstile-pod-annotations"


def _pod_annotations(names: Names) -> set[str]:
    """Everything the contract names, without resources and what is on nodes."""
    found: set[str] = set()
    for attribute in vars(Names):
        value = getattr(names, attribute)
        if isinstance(value, str) and value.startswith(f"{names.domain}/"):
            found.add(value)
        elif isinstance(value, frozenset):
            found |= value
    return found - {names.core, names.memory, names.gpu_cards}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: each["metadata"]["name"])
def test_the_domain_stands_once_in_each_expression_that_knows_it(policy: Json) -> None:
    """Where components/domain replaces it: between the first pair of quotes."""
    spec = policy["spec"]
    (domain,) = (each for each in spec["variables"] if each["name"] == "domain")
    assert domain["expression"] == "'tencent.com'"
    rest = str([each for each in spec["variables"] if each is not domain] + spec["validations"])
    assert "tencent.com" not in rest
    for each in spec["matchConditions"]:
        before, found, _after = each["expression"].partition("tencent.com")
        assert not found or before == "['"


def test_the_evaluator_tells_apart() -> None:
    assert evaluate("object.a == 1", {"object": json_to_cel({"a": 1})})
    assert not evaluate("object.a == 1", {"object": json_to_cel({"a": 2})})
