"""The component ``dra``: who may write pods, templates, claims, slices and counts."""

import json
from typing import Any

import pytest

from agent.dra.devices import manifest, slices_of
from claims.writer import make_template
from contract.claims import MODE_LABEL as MODE
from contract.claims import read_pod_claim
from simulator.api.webhooks import Operation
from tests.deploy.manifests import Json, find
from tests.deploy.policies import Update, denials
from tests.deploy.policy_examples import AGENT, NAMES, OTHER_USER, SCHEDULER, merge
from tests.deploy.test_conditions import GPU
from tests.deploy.test_dra import CLAIMS, DRIVER, admitted, by_template, claim_objects, make_pod
from webhook.admission.claims import Claims

CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"


def _denied(policy: str, update: Update) -> list[str]:
    return denials(
        find(claim_objects(), "ValidatingAdmissionPolicy", f"gpu-turnstile-{policy}"), update
    )


def _check(policy: str, update: Update, denied: str = "") -> None:
    found = _denied(policy, update)
    assert any(denied in each for each in found) if denied else found == []


def _excluding(*modes: list[str], operator: str = "NotIn") -> Json:
    terms = [
        {"matchExpressions": [{"key": MODE, "operator": operator, "values": each}]}
        for each in modes
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


_TEMPLATE = f"gpu-turnstile-{'a1' * 8}"
_NO_CLAIM = "does not have the claim of the webhook of gpu-turnstile: that has --claims off"
_CLAIM = "Forbidden: a claim by a template"


@pytest.mark.parametrize(
    ("limits", "spec", "denied"),
    [
        (GPU, by_template(_TEMPLATE), ""),
        (GPU, {}, _NO_CLAIM),
        (GPU, by_template("theirs"), _NO_CLAIM),
        (GPU, _excluding(["dra"]), ""),
        (GPU, _excluding(["other", "dra"], ["dra"]), ""),
        (GPU, _excluding(["dra"], ["other"]), _NO_CLAIM),
        (GPU, _excluding(["dra"], operator="In"), _NO_CLAIM),
        (GPU, _excluding(), ""),  # no term matches no node
        (GPU, {"nodeSelector": {MODE: "plugin"}}, ""),
        (GPU, {"nodeSelector": {MODE: "dra"}}, _NO_CLAIM),
        (GPU, {"nodeSelector": {"zone": "a"}, "affinity": {"podAffinity": {}}}, _NO_CLAIM),
        (GPU, by_template(_TEMPLATE, "mine"), _CLAIM),
        (None, by_template(_TEMPLATE), _CLAIM),
        ({NAMES.core: "0"}, by_template(_TEMPLATE), _CLAIM),
        (None, by_template("theirs"), ""),
        (None, {}, ""),
    ],
)
def test_a_gpu_pod_has_its_claim_or_stays_off_nodes_with_claims(
    limits: Json | None, spec: Json, denied: str
) -> None:
    _check(
        "claimed-pods", Update(OTHER_USER, {}, make_pod(limits, **spec), operation="CREATE"), denied
    )


@pytest.mark.parametrize("claims", [Claims.ON, Claims.AWAY])
@pytest.mark.parametrize("spec", [{}, _excluding(["other"]), by_template(_TEMPLATE)])
def test_the_policy_allows_every_gpu_pod_that_the_webhook_has_patched(
    claims: Claims, spec: Json
) -> None:
    pod = admitted(make_pod(GPU, **spec), claims)
    _check("claimed-pods", Update(OTHER_USER, {}, pod, operation="CREATE"))


# --- templates and claims -------------------------------------------------------------------


def _template() -> Json:
    claim = read_pod_claim(admitted(make_pod(GPU)), NAMES)
    assert claim is not None
    template: Json = json.loads(json.dumps(make_template(claim.template, claim.spec)))
    return template


_REQUEST: Json = {"name": "main", "exactly": {"deviceClassName": DRIVER}}
_OTHER: Json = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}


def _devices(*requests: Json, **more: Any) -> Json:
    return {"spec": {"spec": {"devices": {"requests": [*requests], **more}}}}


@pytest.mark.parametrize(
    ("patch", "operation", "denied"),
    [
        ({}, "CREATE", ""),
        ({}, "DELETE", ""),
        ({"metadata": {"labels": None}}, "DELETE", ""),
        ({"metadata": {"name": "theirs"}}, "DELETE", "whose name is"),
        ({"metadata": {"name": "gpu-turnstile-theirs"}}, "CREATE", "whose name is"),
        ({"metadata": {"labels": None}}, "CREATE", "with the label"),
        (
            {"metadata": {"labels": {"gpu-turnstile.io/shape": "0" * 16}}},
            "CREATE",
            "with the label",
        ),
        (_devices(_REQUEST, _OTHER), "CREATE", "our DeviceClass"),
        (_devices({"name": "a", "firstAvailable": []}), "CREATE", "our DeviceClass"),
        (
            _devices(merge(_REQUEST, {"exactly": {"adminAccess": True}})),
            "CREATE",
            "our DeviceClass",
        ),
        (_devices(_REQUEST, config=[{}]), "CREATE", "our DeviceClass"),
        (_devices(_OTHER), "UPDATE", "our DeviceClass"),
    ],
)
def test_claims_writes_only_templates_of_ours(
    patch: Json, operation: Operation, denied: str
) -> None:
    template = merge(_template(), patch)
    old = _template() if operation == "UPDATE" else {}
    _check("claims-templates", Update(CLAIMS, old, template, operation=operation), denied)
    _check("claims-templates", Update(OTHER_USER, old, template, operation=operation))


@pytest.mark.parametrize(
    ("requests", "denied"),
    [
        ([_REQUEST], True),
        ([_OTHER, _REQUEST], True),
        ([{"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": DRIVER}]}], True),
        ([_OTHER], False),
        ([], False),
    ],
)
def test_no_other_user_creates_a_claim_of_our_device_class(
    requests: list[Json], denied: bool
) -> None:
    api = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "mine"}}
    spec: Json = {"devices": {"requests": requests or None}}  # as an API server has none
    claim = {**api, "kind": "ResourceClaim", "spec": spec}
    template = {**api, "kind": "ResourceClaimTemplate", "spec": {"spec": spec}}
    for obj, users in (
        # A scheduler claims what limits call deviceclass.resource.kubernetes.io/gpu.tencent.com.
        (claim, {OTHER_USER: True, SCHEDULER: True, CLAIMS: True, CONTROLLER: False}),
        (template, {OTHER_USER: True, CLAIMS: False, CONTROLLER: True}),
    ):
        for user, judged in users.items():
            found = _denied("own-claims", Update(user, {}, obj, operation="CREATE"))
            assert bool(found) == (denied and judged), user
            assert all(f"gpu.{NAMES.domain}" in each for each in found)


_CLAIM_OF_A_POD: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "p-gpus-x", "ownerReferences": [{"kind": "Pod", "uid": "u1"}]},
    "spec": {"devices": {"requests": [_REQUEST]}},
    "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"}]},
}
_RESERVED, _OWNED = "serves only the pod that it was made for", "stays with the pod"


def _reserved(*uids: str, resource: str = "pods") -> Json:
    return {"status": {"reservedFor": [{"resource": resource, "uid": each} for each in uids]}}


def _owned(*uids: str) -> Json:
    return {"metadata": {"ownerReferences": [{"kind": "Pod", "uid": each} for each in uids]}}


@pytest.mark.parametrize(
    ("old", "new", "denied"),
    [
        ({"status": None}, _reserved("u1"), ""),
        ({}, {"status": None}, ""),
        ({"status": None}, _reserved("u1", resource="podgroups"), _RESERVED),
        ({}, _reserved("u1", "u2"), _RESERVED),
        ({"status": {}}, _reserved("u2"), _RESERVED),
        ({"metadata": {"ownerReferences": None}}, _reserved("u1"), ""),  # its pod still runs
        ({"metadata": {"ownerReferences": None}, "status": None}, _reserved("u1"), _RESERVED),
        ({}, {"metadata": {"finalizers": ["x"], "labels": {"a": "b"}}}, ""),
        ({}, {"metadata": {"ownerReferences": None}}, ""),
        ({}, _owned("u2"), _OWNED),
        ({}, _owned("u1", "u2"), _OWNED),
        ({"spec": {"devices": {"requests": [_OTHER]}}}, _reserved("u2"), ""),
        ({"spec": {"devices": {"requests": []}}}, _owned("u2"), ""),
    ],
)
def test_a_claim_with_gpus_is_used_by_its_own_pod_alone(old: Json, new: Json, denied: str) -> None:
    """A pod may name the claim of another one; no quota would count what it gets."""
    before = merge(_CLAIM_OF_A_POD, old)
    before["spec"]["devices"]["requests"] = before["spec"]["devices"]["requests"] or None
    for subresource in ("", "status"):
        update = Update(OTHER_USER, before, merge(before, new), subresource)
        _check("claim-users", update, denied)


# --- the agent's writes ------------------------------------------------------------------------


def _slice(node: str = "n1", driver: str = DRIVER, pool: str = "") -> Json:
    ((name, spec),) = slices_of([{"name": "gpu-0"}], driver=driver, node=node).items()
    spec["pool"]["name"] = pool or node
    return manifest(name, spec, 1, "uid")


@pytest.mark.parametrize(
    ("new", "node", "denied"),
    [
        (_slice(), "n1", ""),
        (_slice(), None, "its own node"),
        (_slice(), "n2", "its own node"),
        (_slice("n2"), "n1", "its own node"),
        (_slice(pool="n2"), "n1", "its own node"),
        (_slice(driver="gpu.nvidia.com"), "n1", "its own driver"),
        (merge(_slice(), {"spec": {"nodeName": None, "allNodes": True}}), "n1", "its own node"),
    ],
)
def test_an_agent_writes_only_slices_of_its_own_node_and_driver(
    new: Json, node: str | None, denied: str
) -> None:
    for update in (
        Update(AGENT, {}, new, node=node, operation="CREATE"),
        Update(AGENT, {}, new, node=node, operation="DELETE"),
        Update(AGENT, _slice(), new, node=node),
        Update(AGENT, new, _slice(), node=node),
    ):
        _check("agent-slices", update, denied)
    _check("agent-slices", Update(OTHER_USER, {}, new, operation="CREATE"))


_COUNTS = {"cpu": "8", NAMES.core: "800"}
_STATUS: Json = {
    "capacity": _COUNTS,
    "allocatable": _COUNTS,
    "conditions": [{"type": "Ready", "status": "True"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
}
_OF_COUNTS, _REST = "only the counts of its own resources", "only counts in a node's status"


@pytest.mark.parametrize(
    ("patch", "denied"),
    [
        ({}, ""),
        ({"capacity": {NAMES.core: "400", NAMES.memory: "64"}}, ""),
        ({"allocatable": {NAMES.core: None}}, ""),
        ({"capacity": {"cpu": "80"}}, _OF_COUNTS),
        ({"allocatable": {"cpu": None}}, _OF_COUNTS),
        ({"allocatable": {"nvidia.com/gpu": "8"}}, _OF_COUNTS),
        ({"allocatable": None}, _OF_COUNTS),
        ({"conditions": []}, _REST),
        ({"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}, _REST),
        ({"addresses": None}, _REST),
        ({"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}, _REST),
        ({"images": [{"names": ["a"]}]}, _REST),
    ],
)
def test_an_agent_changes_only_its_counts_in_the_status_of_its_node(
    patch: Json, denied: str
) -> None:
    old: Json = {"kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": _STATUS}
    new = merge(old, {"status": patch})
    _check("agent-node", Update(AGENT, old, new, "status", "n1"), denied)
    assert _denied("agent-node", Update(AGENT, old, new, "status", "n2"))
