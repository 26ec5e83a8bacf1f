"""The policies' CEL, evaluated on requests about pods, Bindings and nodes."""

from dataclasses import replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.requests import read_pod_demand
from contract.reusable import NO_ROOM, SPLIT
from contract.stamps import OrderStamp
from simulator.api.patching import apply_json_patch
from tests.deploy.creation_examples import BINDINGS, CREATIONS, Bound, Creation
from tests.deploy.manifests import Json, base, find
from tests.deploy.policies import Update, denials
from tests.deploy.policy_examples import NAMES, NODES, OURS, PODS, Example
from tests.examples import share
from webhook.admission.pods import decide_pod

OBJECTS = base()
POLICIES = [each for each in OBJECTS if each["kind"] == "ValidatingAdmissionPolicy"]
NEW_PODS = [
    each
    for each in POLICIES
    if each["spec"]["matchConstraints"]["resourceRules"][0]
    == {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        "scope": "*",
    }
]
"""The policies on new pods, which see them as they will be stored."""


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
def test_only_permitted_users_change_a_pod(example: Example) -> None:
    _check(_policies("pods"), example.update(_pod(example)), example.denied)


@pytest.mark.parametrize("example", NODES, ids=lambda each: each.title)
def test_only_permitted_users_change_a_node(example: Example) -> None:
    _check(_policies("nodes"), example.update(_node(example)), example.denied)


@pytest.mark.parametrize("example", CREATIONS, ids=lambda each: each.title)
def test_policies_deny_an_invalid_new_pod(example: Creation) -> None:
    """The pod is as it will be stored, after all mutating webhooks (K22)."""
    found = [message for policy in NEW_PODS for message in denials(policy, example.request())]
    assert len(found) == len(example.denied), found
    for part in example.denied:
        assert any(part in message for message in found), found


@pytest.mark.parametrize("example", BINDINGS, ids=lambda each: each.title)
def test_a_binding_sets_only_permitted_annotations(example: Bound) -> None:
    policy = find(OBJECTS, "ValidatingAdmissionPolicy", "gpu-turnstile-bindings")
    _check([policy], example.request(), example.denied)


@pytest.mark.parametrize(
    ("before", "after", "denied"),
    [
        pytest.param([("", "")], [("10", "1")], "c0", id="a request is added"),
        pytest.param([("10", "1")], [("", "")], "c0", id="removed"),
        pytest.param([("10", "1"), ("10", "1")], [("10", "1"), ("10", "2")], "c1", id="changed"),
        pytest.param([("10", "1"), ("", "")], [("10", "1"), ("0", "0")], "", id="nothing is added"),
        pytest.param([("10", "1")], [("10", "1")], "", id="other resources change"),
    ],
)
@pytest.mark.parametrize("init", [False, True], ids=["main", "init"])
def test_a_resize_cannot_change_gpu_requests(
    before: list[tuple[str, str]], after: list[tuple[str, str]], denied: str, init: bool
) -> None:
    """An API server of 1.33 permits it."""

    def pod(requests: list[tuple[str, str]]) -> Json:
        made = Creation("any", [("", "")], requests) if init else Creation("any", requests)
        return made.pod()

    policy = find(OBJECTS, "ValidatingAdmissionPolicy", "gpu-turnstile-resizes")
    update = Update("someone", pod(before), pod(after), subresource="resize")
    name = denied.replace("c", "i") if init else denied
    message = name and f"containers {name}: resources.limits: Forbidden: "
    _check([policy], update, message)


_COUNTS = st.sampled_from(["", "0", "1", "50", "99", "100", "150", "200", "300", "1k", "3G"])
_REQUESTED = st.tuples(_COUNTS, _COUNTS)
_CARDS = ["", "0", "1", "02", "2", "3", "16", "17", "0" * 9 + "2", "-1", "1.5", "two", "2\n"]
_NAMED = st.sampled_from([f"{kind}{at}" for kind in "ci" for at in range(3)] + ["other", ""])


def _divided(cards: dict[str, str]) -> dict[str, str]:
    return OURS | {NAMES.gpu_cards_of(name): count for name, count in cards.items()}


@settings(max_examples=share(90), deadline=None)
@given(
    st.lists(_REQUESTED, min_size=1, max_size=3),
    st.lists(_REQUESTED, max_size=3),
    st.dictionaries(_NAMED, st.sampled_from(_CARDS), max_size=3),
)
@example([("150", "3")], [], {"c0": "3"})
@example([("200", "3")], [], {"c0": "2"})
@example([("100", "3")], [], {"c0": "2"})
@example([("99", "3")], [], {"c0": "2"})
@example([("150", "3")], [], {"c0": ""})
@example([("150", "")], [], {"c0": "2"})
@example([("100", "2")], [], {"i0": "2"})
@example([("100", "2")], [("", "")], {"i0": "2"})
@example([("200", ""), ("150", "3")], [("300", "")], {"c1": "2"})
def test_the_requests_policy_and_the_webhook_agree_about_every_pod(
    containers: list[tuple[str, str]], init: list[tuple[str, str]], cards: dict[str, str]
) -> None:
    made = Creation("any", containers, init, _divided(cards))
    (policy,) = (each for each in NEW_PODS if each["metadata"]["name"] == "gpu-turnstile-requests")
    demand, errors = read_pod_demand(made.pod(), NAMES)
    alone = {NO_ROOM}  # what only the webhook checks
    if any(cards.get(each.name) for each in demand.containers):
        alone.add(SPLIT)
    webhook_errors = [error for error in errors if error.rule not in alone]
    assert bool(denials(policy, made.request())) == bool(webhook_errors)


_RIGHT = st.sampled_from(
    [("", ""), ("1", "1"), ("50", "8"), ("100", ""), ("100", "8"), ("200", ""), ("300", "2")]
)


@settings(max_examples=share(25), deadline=None)
@given(
    st.lists(_RIGHT, min_size=1, max_size=3),
    st.lists(_RIGHT.map(lambda each: (*each, "Always")) | _RIGHT, max_size=4),
    st.dictionaries(_NAMED, st.just("2"), max_size=2),
)
def test_policies_allow_sidecars_that_the_webhook_allows(
    containers: list[tuple[str, str]], init: list[tuple[str, ...]], cards: dict[str, str]
) -> None:
    made = Creation("any", containers, init, _divided(cards))
    demand, errors = read_pod_demand(made.pod(), NAMES)
    assume(demand and not errors)
    assert [each for policy in NEW_PODS for each in denials(policy, made.request())] == []


def test_policies_allow_every_pod_that_the_webhook_has_patched() -> None:
    """Copied annotations are no reason for a denial: the webhook removes them."""
    copied = OURS | dict.fromkeys(
        (NAMES.gpu_allocation, NAMES.predicate_gpu_idx(3), NAMES.bind_order), "x"
    )
    for containers in (("50", "8"),), (("", ""),), (("", ""), ("200", "")):
        pod = Creation("copied", containers, annotations=copied).pod()
        verdict = decide_pod(pod, names=NAMES, stamp=lambda: OrderStamp(1, "w", 0))
        patched = apply_json_patch(pod, [dict(each) for each in verdict.patch])
        request = replace(Creation("any").request(), new=patched)
        assert [each for policy in NEW_PODS for each in denials(policy, request)] == []


def test_all_policies_have_the_same_condition_for_gpu_pods() -> None:
    conditions = {
        each["metadata"]["name"]: each["spec"]["matchConditions"][0]["expression"]
        for each in NEW_PODS
    }
    condition = conditions["gpu-turnstile-stamps"]
    assert condition == conditions["gpu-turnstile-requests"]
    (records,) = (each for each in NEW_PODS if each["metadata"]["name"].endswith("-records"))
    (inside,) = (e for e in records["spec"]["variables"] if e["name"] == "requestsGpus")
    assert inside["expression"] == condition.replace("'tencent.com'", "variables.domain")


def test_new_pods_are_reviewed_only_in_selected_namespaces() -> None:
    (hooks,) = (each for each in OBJECTS if each["kind"] == "MutatingWebhookConfiguration")
    selector = hooks["webhooks"][0]["namespaceSelector"]
    assert all(
        each["spec"]["matchConstraints"]["namespaceSelector"] == selector for each in NEW_PODS
    )


def test_every_policy_is_bound_and_denies() -> None:
    bindings = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in OBJECTS
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bindings == {each["metadata"]["name"]: ["Deny", "Audit"] for each in POLICIES}


def test_the_policies_cover_every_annotation_of_the_contract() -> None:
    """A new one must be put under one of the rules, or every user may change it."""
    names, text = Names(), str(find(OBJECTS, "ValidatingAdmissionPolicy", _GUARD))
    stamped = {names.predicate_time, names.predicate_node, names.predicate_gpu_idx_prefix}
    for key in _pod_annotations(names) - stamped - {names.gpu_cards_prefix}:
        assert f"'{key.removeprefix(names.domain + '/')}'" in text
    assert f"'{names.gpu_cards_prefix.removeprefix(names.domain)}'" in text
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
    on_nodes = {names.gpu_cards, names.gpu_cordoned, names.gpu_model}
    return found - on_nodes - {names.core, names.memory}
