"""The component ``dra``: agents on labelled nodes, the claims program and the webhook."""

from copy import deepcopy
from typing import Any

import pytest

from agent.__main__ import main as agent_command
from agent.settings import AgentMode, Settings
from contract.claims import MODE_LABEL as MODE
from contract.claims import driver_name
from contract.names import Names
from contract.stamps import OrderStamp
from proxy.__main__ import main as proxy_command
from proxy.program import REGISTRY
from simulator.api.patching import apply_json_patch
from tests.deploy.cel import condition_holds
from tests.deploy.kustomize import build, build_components
from tests.deploy.manifests import Json, containers, environment, find, pod_specs, selects
from tests.deploy.policy_examples import NAMES, OURS
from tests.deploy.test_conditions import PLAIN, PODS, reaches
from webhook.admission.claims import Claims
from webhook.admission.options import AdmissionOptions
from webhook.admission.pods import decide_pod

CLAIMS = "system:serviceaccount:gpu-turnstile:gpu-turnstile-claims"
DRIVER = driver_name(NAMES)
_PLUGIN, _DRA = "DaemonSet/gpu-turnstile-agent", "DaemonSet/gpu-turnstile-agent-dra"
_PROXY = "DaemonSet/gpu-turnstile-proxy-dra"


def claim_objects() -> list[Json]:
    return build("overlays/dra")


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


def test_daemons_of_mps_run_where_agents_of_both_kinds_do() -> None:
    specs = pod_specs(build_components("dra", "mps"))
    labels = {}
    for name in (_PLUGIN, "DaemonSet/gpu-turnstile-mps"):
        affinity = specs[name]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        labels[name] = [each["matchExpressions"][0] for each in terms]
    of_plugin, of_daemons = labels.values()
    assert of_daemons == [*of_plugin, {"key": MODE, "operator": "In", "values": ["dra"]}]


def test_the_next_agent_and_the_next_proxy_start_beside_the_old_ones() -> None:
    for each in (_DRA, _PROXY):
        found = find(claim_objects(), "DaemonSet", each.partition("/")[2])["spec"]["updateStrategy"]
        surge = {"maxSurge": 1, "maxUnavailable": 0}
        assert found == {"type": "RollingUpdate", "rollingUpdate": surge}


def test_the_proxy_has_the_kubelets_registry_and_finds_the_agent() -> None:
    specs = pod_specs(claim_objects())
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
    spec = pod_specs(claim_objects())[_DRA]
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
    objects = claim_objects()
    sets = [find(objects, "DaemonSet", each.partition("/")[2]) for each in (_PLUGIN, _DRA)]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in sets]
    policy = find(objects, "NetworkPolicy", "gpu-turnstile-agent")["spec"]
    assert all(selects(policy["podSelector"], each) for each in labels)
    assert not selects(sets[1]["spec"]["selector"], labels[0])


def test_claims_can_be_scraped_and_policies_know_its_account() -> None:
    objects = claim_objects()
    assert "ingress" in find(objects, "NetworkPolicy", "gpu-turnstile-claims")["spec"]
    account = find(objects, "ServiceAccount", "gpu-turnstile-claims")["metadata"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" == CLAIMS


@pytest.mark.parametrize("order", [("domain", "dra"), ("dra", "domain")], ids="-".join)
def test_the_device_class_has_the_drivers_name_and_selects_its_devices(
    order: tuple[str, ...],
) -> None:
    for built, names in (
        (claim_objects(), NAMES),
        (build_components(*order), Names("gpu.example.com")),
    ):
        (device_class,) = (each for each in built if each["kind"] == "DeviceClass")
        driver = driver_name(names)
        assert device_class["metadata"]["name"] == driver
        (selector,) = device_class["spec"]["selectors"]
        expression = selector["cel"]["expression"].replace("device", "object", 1)
        assert condition_holds(expression, {"driver": driver})
        assert not condition_holds(expression, {"driver": "gpu.nvidia.com"})
        assert device_class["spec"].keys() == {"selectors"}  # never extendedResourceName


def make_pod(limits: Json | None = None, **spec: Any) -> Json:
    main = PLAIN | ({"resources": {"limits": limits}} if limits else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": dict(OURS)},
        "spec": {"containers": [main], **spec},
    }


def by_template(template: str, name: str = "gpus") -> Json:
    return {"resourceClaims": [{"name": name, "resourceClaimTemplateName": template}]}


def admitted(pod: Json, claims: Claims = Claims.ON) -> Json:
    verdict = decide_pod(
        pod,
        names=NAMES,
        stamp=lambda: OrderStamp(1, "w", 0),
        options=AdmissionOptions(claims=claims),
    )
    return apply_json_patch(pod, [dict(each) for each in verdict.patch])


def test_the_webhook_removes_a_template_of_ours_from_a_pod_without_gpus() -> None:
    pod = make_pod(**by_template(f"gpu-turnstile-{'0' * 16}"))
    del pod["metadata"]["annotations"]
    assert reaches(PODS, pod)
    assert "resourceClaims" not in admitted(pod)["spec"]
    for other in (by_template("theirs"), {"resourceClaims": [{"name": "a"}]}):
        pod["spec"] |= other
        assert not reaches(PODS, pod)
    webhook = containers(pod_specs(claim_objects())["Deployment/gpu-turnstile-webhook"])[0]
    assert environment(webhook)["GPU_TURNSTILE_WEBHOOK_CLAIMS"] == Claims.ON
