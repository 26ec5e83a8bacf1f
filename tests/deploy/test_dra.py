"""The component ``dra``: agents on labelled nodes, the claims program, and the permitted writes."""

import json
from copy import deepcopy
from typing import Any

import pytest

from agent.__main__ import main as agent_command
from agent.dra.devices import manifest, slices_of
from agent.settings import AgentMode, Settings
from claims.__main__ import cli as claims
from claims.writer import make_template
from contract.claims import MODE_LABEL as MODE
from contract.claims import driver_name, read_pod_claim
from contract.names import Names
from contract.stamps import OrderStamp
from proxy.__main__ import main as proxy_command
from proxy.program import REGISTRY
from simulator.api.patching import apply_json_patch
from simulator.api.webhooks import Operation
from tests.deploy.cel import condition_holds
from tests.deploy.kustomize import build, build_components
from tests.deploy.manifests import Json, containers, environment, find, pod_specs, selects
from tests.deploy.policies import Update, denials
from tests.deploy.policy_examples import AGENT, NAMES, OTHER_USER, OURS, SCHEDULER, merge
from tests.deploy.soundness import variables
from tests.deploy.test_conditions import GPU, PLAIN, PODS, reaches
from webhook.admission.claims import Claims
from webhook.admission.options import AdmissionOptions
from webhook.admission.pods import decide_pod

CLAIMS = "system:serviceaccount:gpu-turnstile:gpu-turnstile-claims"
CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
DRIVER = driver_name(NAMES)
_PLUGIN, _DRA = "DaemonSet/gpu-turnstile-agent", "DaemonSet/gpu-turnstile-agent-dra"
_PROXY = "DaemonSet/gpu-turnstile-proxy-dra"


def _objects() -> list[Json]:
    return build("overlays/dra")


def _denied(policy: str, update: Update) -> list[str]:
    return denials(find(_objects(), "ValidatingAdmissionPolicy", f"gpu-turnstile-{policy}"), update)


# --- the agents -----------------------------------------------------------------------------


@pytest.mark.parametrize("before", [(), ("try-out",), ("gpu-manager",)], ids="-".join)
def test_a_node_has_the_agent_and_the_proxy_of_its_label(before: tuple[str, ...]) -> None:
    specs = pod_specs(build_components(*before, "dra"))
    for name in (_PLUGIN, "DaemonSet/gpu-turnstile-proxy"):
        affinity = specs[name]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        excluded = {"key": MODE, "operator": "NotIn", "values": ["dra"]}
        assert all(excluded in each["matchExpressions"] for each in terms)
    for name in (_DRA, _PROXY):
        assert specs[name]["nodeSelector"][MODE] == "dra"
        assert "affinity" not in specs[name]


def test_the_next_agent_and_the_next_proxy_start_beside_the_old_ones() -> None:
    for each in (_DRA, _PROXY):
        found = find(_objects(), "DaemonSet", each.partition("/")[2])["spec"]["updateStrategy"]
        surge = {"maxSurge": 1, "maxUnavailable": 0}
        assert found == {"type": "RollingUpdate", "rollingUpdate": surge}


def test_the_proxy_has_the_kubelets_registry_and_finds_the_agent() -> None:
    specs = pod_specs(_objects())
    options = proxy_command.make_context("proxy", []).params
    (container,) = containers(specs[_PROXY])
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    kubelet, plugins = options["kubelet_dir"], options["plugin_dir"]
    assert {*mounted.values()} == {
        str(each) for each in (kubelet, kubelet.parent / REGISTRY, plugins)
    }
    outside = {each["name"]: each["hostPath"]["path"] for each in specs[_PROXY]["volumes"]}
    assert mounted == outside
    (agent,) = containers(specs[_DRA])
    assert environment(agent)["GPU_TURNSTILE_PLUGIN_DIR"] == str(plugins)


def test_the_proxy_finds_the_agents_sockets_where_the_agent_says_and_it_mounts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = pod_specs(_objects())[_DRA]
    (container,) = containers(spec)
    for name, value in environment(container).items():
        monkeypatch.setenv(name, value)
    options = agent_command.make_context("agent", ["--node-name", "n1"]).params
    options.pop("log_level")
    settings = Settings(**options)
    assert settings.mode is AgentMode.DRA
    mounted = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounted == {
        str(settings.claim_plugins): False,
        str(settings.plugin_registry): False,
        str(settings.cdi_dir): False,
        str(settings.plugin_dir): False,
        str(settings.kubelet_dir): True,
    }
    outside = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    assert {each["name"]: each["mountPath"] for each in container["volumeMounts"]} == outside


@pytest.mark.parametrize(
    "components",
    [
        ("cdi", "runtime-class", "dra"),
        ("vcuda", "driver-auto", "dra"),
        ("cdi", "driver-auto", "gpu-operator", "openshift", "dra"),
        ("gpu-manager", "host-driver", "dra"),
    ],
    ids="-".join,
)
def test_the_agent_for_claims_has_the_settings_of_earlier_components(
    components: tuple[str, ...],
) -> None:
    specs = pod_specs(build_components(*components))
    plugin, dra = deepcopy(specs[_PLUGIN]), deepcopy(specs[_DRA])
    own = {"GPU_TURNSTILE_MODE", "GPU_TURNSTILE_KUBELET_DIR", "MALLOC_ARENA_MAX"}
    for spec, of_dra in ((plugin, False), (dra, True)):
        spec.pop("affinity", None)
        (container,) = spec["containers"]
        container["env"] = [each for each in container["env"] if each["name"] not in own]
        for listed in (container["volumeMounts"], spec["volumes"]):
            listed[:] = sorted(
                (
                    each
                    for each in listed
                    if each["name"]
                    not in ("claims", "registry", "checkpoint", "device-plugins", "pod-resources")
                    and (each["name"] != "cdi" or "cdi" in components)
                ),
                key=lambda each: each["name"],
            )
        if of_dra:
            assert spec["nodeSelector"].pop(MODE) == "dra"
        if not spec.get("nodeSelector"):
            spec.pop("nodeSelector", None)
    assert dra == plugin


def test_agents_of_both_kinds_are_found_by_one_name() -> None:
    objects = _objects()
    sets = [find(objects, "DaemonSet", each.partition("/")[2]) for each in (_PLUGIN, _DRA)]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in sets]
    policy = find(objects, "NetworkPolicy", "gpu-turnstile-agent")["spec"]
    assert all(selects(policy["podSelector"], each) for each in labels)
    assert not selects(sets[1]["spec"]["selector"], labels[0])


# --- the claims program, the class, the webhook -----------------------------------------------


def test_claims_listens_where_it_is_probed_and_nothing_else_is_open() -> None:
    objects = _objects()
    (container,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-claims"])
    (port,) = container["ports"]
    assert port["containerPort"] == variables(claims)["GPU_TURNSTILE_CLAIMS_HTTP_PORT"].default
    policy = find(objects, "NetworkPolicy", "gpu-turnstile-claims")["spec"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["containerPort"]}]}]
    account = find(objects, "ServiceAccount", "gpu-turnstile-claims")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert user == CLAIMS


@pytest.mark.parametrize("order", [("domain", "dra"), ("dra", "domain")], ids="-".join)
def test_the_device_class_has_the_drivers_name_and_selects_its_devices(
    order: tuple[str, ...],
) -> None:
    for built, names in ((_objects(), NAMES), (build_components(*order), Names("gpu.example.com"))):
        (device_class,) = (each for each in built if each["kind"] == "DeviceClass")
        driver = driver_name(names)
        assert device_class["metadata"]["name"] == driver
        (selector,) = device_class["spec"]["selectors"]
        expression = selector["cel"]["expression"].replace("device", "object", 1)
        assert condition_holds(expression, {"driver": driver})
        assert not condition_holds(expression, {"driver": "gpu.nvidia.com"})
        assert device_class["spec"].keys() == {"selectors"}  # never extendedResourceName


def _pod(limits: Json | None = None, **spec: Any) -> Json:
    main = PLAIN | ({"resources": {"limits": limits}} if limits else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": dict(OURS)},
        "spec": {"containers": [main], **spec},
    }


def _by_template(template: str, name: str = "gpus") -> Json:
    return {"resourceClaims": [{"name": name, "resourceClaimTemplateName": template}]}


def _admitted(pod: Json, claims: Claims = Claims.ON) -> Json:
    verdict = decide_pod(
        pod,
        names=NAMES,
        stamp=lambda: OrderStamp(1, "w", 0),
        options=AdmissionOptions(claims=claims),
    )
    return apply_json_patch(pod, [dict(each) for each in verdict.patch])


def test_the_webhook_removes_a_template_of_ours_from_a_pod_without_gpus() -> None:
    pod = _pod(**_by_template(f"gpu-turnstile-{'0' * 16}"))
    del pod["metadata"]["annotations"]
    assert reaches(PODS, pod)
    assert "resourceClaims" not in _admitted(pod)["spec"]
    for other in (_by_template("theirs"), {"resourceClaims": [{"name": "a"}]}):
        pod["spec"] |= other
        assert not reaches(PODS, pod)
    webhook = containers(pod_specs(_objects())["Deployment/gpu-turnstile-webhook"])[0]
    assert environment(webhook)["GPU_TURNSTILE_WEBHOOK_CLAIMS"] == Claims.ON


# --- pods ---------------------------------------------------------------------------------------


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
        (GPU, _by_template(_TEMPLATE), ""),
        (GPU, {}, _NO_CLAIM),
        (GPU, _by_template("theirs"), _NO_CLAIM),
        (GPU, _excluding(["dra"]), ""),
        (GPU, _excluding(["other", "dra"], ["dra"]), ""),
        (GPU, _excluding(["dra"], ["other"]), _NO_CLAIM),
        (GPU, _excluding(["dra"], operator="In"), _NO_CLAIM),
        (GPU, _excluding(), ""),  # no term matches no node
        (GPU, {"nodeSelector": {MODE: "plugin"}}, ""),
        (GPU, {"nodeSelector": {MODE: "dra"}}, _NO_CLAIM),
        (GPU, {"nodeSelector": {"zone": "a"}, "affinity": {"podAffinity": {}}}, _NO_CLAIM),
        (GPU, _by_template(_TEMPLATE, "mine"), _CLAIM),
        (None, _by_template(_TEMPLATE), _CLAIM),
        ({NAMES.core: "0"}, _by_template(_TEMPLATE), _CLAIM),
        (None, _by_template("theirs"), ""),
        (None, {}, ""),
    ],
)
def test_a_gpu_pod_has_its_claim_or_stays_off_nodes_with_claims(
    limits: Json | None, spec: Json, denied: str
) -> None:
    found = _denied(
        "claimed-pods", Update(OTHER_USER, {}, _pod(limits, **spec), operation="CREATE")
    )
    assert any(denied in each for each in found) if denied else found == []


@pytest.mark.parametrize("claims", [Claims.ON, Claims.AWAY])
@pytest.mark.parametrize("spec", [{}, _excluding(["other"]), _by_template(_TEMPLATE)])
def test_the_policy_allows_every_gpu_pod_that_the_webhook_has_patched(
    claims: Claims, spec: Json
) -> None:
    pod = _admitted(_pod(GPU, **spec), claims)
    assert _denied("claimed-pods", Update(OTHER_USER, {}, pod, operation="CREATE")) == []


# --- templates and claims -------------------------------------------------------------------


def _template() -> Json:
    claim = read_pod_claim(_admitted(_pod(GPU)), NAMES)
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
    found = _denied("claims-templates", Update(CLAIMS, old, template, operation=operation))
    assert any(denied in each for each in found) if denied else found == []
    assert _denied("claims-templates", Update(OTHER_USER, old, template, operation=operation)) == []


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
        found = _denied("claim-users", update)
        assert any(denied in each for each in found) if denied else found == []


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
        found = _denied("agent-slices", update)
        assert any(denied in each for each in found) if denied else found == []
    assert _denied("agent-slices", Update(OTHER_USER, {}, new, operation="CREATE")) == []


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
    found = _denied("agent-node", Update(AGENT, old, new, "status", "n1"))
    assert any(denied in each for each in found) if denied else found == []
    assert _denied("agent-node", Update(AGENT, old, new, "status", "n2"))
