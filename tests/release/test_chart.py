"""The chart renders what kustomize renders, for any choice of components."""

import json
import random
import re
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.injection.inject import Injection
from contract.other_systems import Dialect
from release.chart import NEEDS, by_name, components
from tests.deploy.kustomize import (
    OVERLAYS,
    SCHEDULERS,
    build,
    build_components,
    find_program,
    taken_by,
)
from tests.deploy.manifests import DEPLOY, Json, containers, environment, find, pod_specs
from tests.release.helm import (
    ENFORCEMENTS,
    INJECTIONS,
    chart_files,
    render,
    run,
    template,
    values_for,
    write,
)


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_program("helm")  # else skipped
    return write(tmp_path_factory.mktemp("chart"))


def _ordered(value: Any) -> Any:
    """Sort what may stand in any order: lists of things that have names."""
    if isinstance(value, dict):
        return {key: _ordered(each) for key, each in value.items()}
    if named := by_name(value):
        return {name: _ordered(each) for name, each in named.items()}
    return [_ordered(each) for each in value] if isinstance(value, list) else value


def _identity(each: Json) -> tuple[str, str, str, str]:
    named = each["metadata"]
    return each["apiVersion"], each["kind"], named.get("namespace", ""), named["name"]


def _by_identity(objects: list[Json]) -> dict[Any, Json]:
    local = "config.kubernetes.io/local-config"
    installed = [
        each for each in objects if local not in (each["metadata"].get("annotations") or ())
    ]
    return {_identity(each): _ordered(each) for each in installed}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_the_chart_renders_the_objects_of_each_overlay(overlay: str, chart: Path) -> None:
    values = values_for(set(taken_by(overlay)))
    if overlay == "overlays/k3s":
        values["containerdDir"] = "/run/k3s/containerd"
    assert _by_identity(render(chart, values)) == _by_identity(build(overlay))


def _combinations() -> list[list[str]]:
    """Return all that go together, in each of nine ways, and some by chance."""
    names, chance = components(DEPLOY), random.Random(27)
    of = {each: [name for name in names if name.startswith(each)] for each in ENFORCEMENTS}
    ways = [
        (
            *(name for each in ENFORCEMENTS if each != enforcement for name in of[each]),
            *scheduler,
            *(each for each in INJECTIONS if each != taken),
        )
        for (enforcement, taken), scheduler in zip(
            product(ENFORCEMENTS, INJECTIONS), cycle(SCHEDULERS), strict=False
        )
    ]
    found = [set(names).difference(way) for way in ways]
    own = {"view-use", "mps-host-driver", "mps-runtime-class"}  # no switches of the chart
    for _ in range(8):
        taken = set(chance.sample(names, 6)).difference(chance.choice(ways)) - own
        taken |= {need for each in taken for need in NEEDS.get(each, ())}
        taken |= {"view-use"} if {"view", "use"} <= taken else set()
        if "mps" in taken:
            taken |= {f"mps-{each}" for each in ("host-driver", "runtime-class") if each in taken}
        found.append(taken)
    return [[each for each in names if each in taken] for taken in found]


@pytest.mark.slow
@pytest.mark.parametrize("taken", _combinations(), ids="+".join)
def test_the_chart_renders_the_objects_of_combined_components(
    taken: list[str], chart: Path
) -> None:
    values = values_for(set(taken)) | {"domain": "gpu.example.com"}
    built = build_components(*taken, "domain")
    assert _by_identity(render(chart, values)) == _by_identity(built)


def test_the_copy_of_the_agent_has_the_kubelets_folder(chart: Path) -> None:
    values = values_for({"cdi", "runtime-class", "driver-auto", "dra"})
    elsewhere = render(chart, values | {"kubeletDir": "/var/lib/k0s/kubelet"})
    spec = pod_specs(elsewhere)["DaemonSet/gpu-turnstile-agent-dra"]
    outside = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    (container,) = containers(spec)
    inside = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert environment(container)["GPU_TURNSTILE_KUBELET_DIR"] == inside["checkpoint"]
    assert outside["checkpoint"] == "/var/lib/k0s/kubelet/device-plugins"
    proxy = pod_specs(elsewhere)["DaemonSet/gpu-turnstile-proxy-dra"]
    outside = {each["name"]: each["hostPath"]["path"] for each in proxy["volumes"]}
    assert outside["registry"] == "/var/lib/k0s/kubelet/plugins_registry"
    assert outside["plugins"] == "/run/gpu-turnstile/device-plugins"


@pytest.mark.parametrize(
    "taken", [{"use"}, {"vcuda"}, {"use", "dra"}], ids=lambda each: " ".join(sorted(each))
)
def test_the_values_for_cri_o_lead_the_agents_to_its_socket(taken: set[str], chart: Path) -> None:
    """As docs/distributions.md says."""
    values = values_for(taken) | {
        "containerdDir": "/run/crio",
        "agent": {"env": {"GPU_TURNSTILE_CRI_SOCKET": "/run/containerd/crio.sock"}},
    }
    specs = pod_specs(render(chart, values))
    for name in ("gpu-turnstile-agent", *(["gpu-turnstile-agent-dra"] if "dra" in taken else [])):
        spec = specs[f"DaemonSet/{name}"]
        (container,) = containers(spec)
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volumes = {each["name"]: each for each in spec["volumes"]}
        assert environment(container)["GPU_TURNSTILE_CRI_SOCKET"] == "/run/containerd/crio.sock"
        assert volumes[mounts["/run/containerd"]]["hostPath"]["path"] == "/run/crio"


def test_helm_lint_finds_no_error(chart: Path) -> None:
    done = run("lint", "--strict", str(chart))
    assert done.returncode == 0, done.stdout + done.stderr


def test_namespaces_are_named_once(chart: Path) -> None:
    values = values_for(set(components(DEPLOY)) - {"hami-core", "vcuda", "envvar", "envvar-only"})
    values["namespaces"] = {"system": "one", "node": "two"}
    objects = render(chart, values)
    plain = {each["metadata"]["name"] for each in objects}
    assert {"one", "two"} <= plain
    text = yaml.safe_dump_all(objects, width=10_000)
    for rest in ('-node"', "gpu-turnstile-node:", ".gpu-turnstile.svc", ":gpu-turnstile:"):
        assert rest not in text
    assert 'namespace="gpu-turnstile' not in text.replace("\\", "")
    for each in objects:
        assert each["metadata"].get("namespace", "one") in ("one", "two", "kube-system")
        for entry in each.get("webhooks", ()):
            excluded, *_ = entry["namespaceSelector"]["matchExpressions"]
            assert excluded["values"] == ["kube-system", "one", "two"]


def test_the_namespace_of_the_release_is_not_created_again(chart: Path) -> None:
    objects = render(chart, {}, "--namespace", "gpu-turnstile")
    made = [each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"]
    assert made == ["gpu-turnstile-node"]


def test_values_reach_the_pods(chart: Path) -> None:
    env = {"GPU_TURNSTILE_WEBHOOK_DRAIN_DELAY": 4, "GPU_TURNSTILE_WEBHOOK_PORT": 1}
    limits = {"limits": {"memory": "1Gi"}}
    values = {
        "image": {"repository": "registry.example/gpu", "tag": "1"},
        "proxyImage": {"tag": "0"},
        "webhook": {"replicas": 3, "env": env, "resources": limits},
        "kubeletDir": "/var/lib/k0s/kubelet",
        "imagePullSecrets": [{"name": "pull"}],
        "tolerations": [{"operator": "Exists"}],
    }
    objects = render(chart, values)
    specs = pod_specs(objects)
    images = {containers(spec)[0]["name"]: containers(spec)[0]["image"] for spec in specs.values()}
    assert images.pop("proxy") == "registry.example/gpu:0"
    assert set(images.values()) == {"registry.example/gpu:1"}
    webhook = containers(specs["Deployment/gpu-turnstile-webhook"])[0]
    assert {name: str(each) for name, each in env.items()}.items() <= environment(webhook).items()
    names = [each["name"] for each in webhook["env"]]
    assert len(names) == len(set(names))
    requests = {"requests": {"cpu": "100m", "memory": "128Mi"}}
    assert webhook["resources"] == limits | requests
    assert find(objects, "Deployment", "gpu-turnstile-webhook")["spec"]["replicas"] == 3
    agent = specs["DaemonSet/gpu-turnstile-agent"]
    paths = {each["name"]: each["hostPath"]["path"] for each in agent["volumes"]}
    assert paths["device-plugins"] == "/var/lib/k0s/kubelet/device-plugins"
    assert all(spec["imagePullSecrets"] == [{"name": "pull"}] for spec in specs.values())
    assert specs["Deployment/gpu-turnstile-certs"]["tolerations"] == [{"operator": "Exists"}]


def test_the_schema_has_every_system_of_the_webhook_and_every_injection_of_the_agent() -> None:
    schema = json.loads(chart_files()["values.schema.json"])
    accept = schema["properties"]["dialects"]["properties"]["accept"]
    assert accept["items"]["enum"] == list(Dialect)
    assert f"# Any of {', '.join(Dialect)}; of" in chart_files()["values.yaml"]
    assert sorted(schema["properties"]["inject"]["enum"]) == sorted(Injection)


def test_accepted_systems_reach_the_webhook_and_its_condition(chart: Path) -> None:
    objects = render(chart, {"dialects": {"accept": ["hami", "kai"]}})
    (webhook,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-webhook"])
    assert environment(webhook)["GPU_TURNSTILE_WEBHOOK_ACCEPT"] == "hami,kai"
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        entries = find(objects, kind, "gpu-turnstile")["webhooks"]
        (entry,) = (each for each in entries if each["name"] == "dialects.gpu-turnstile.io")
        (condition,) = entry["matchConditions"]
        assert condition["expression"].startswith("['hami,kai'].exists(accepted, ")


def test_a_second_kube_scheduler_is_of_the_clusters_version(chart: Path) -> None:
    more = ("--kube-version", "v1.31.4-gke.1183000")
    specs = pod_specs(render(chart, {"scheduling": "own"}, *more))
    (container,) = specs["Deployment/gpu-turnstile-kube-scheduler"]["containers"]
    assert container["image"] == "registry.k8s.io/kube-scheduler:v1.31.4"


def test_pods_get_a_scheduler_that_sees_cards_unless_values_say_otherwise(chart: Path) -> None:
    own, stock = (pod_specs(render(chart, each)) for each in ({}, {"scheduling": "stock"}))
    second, webhook = (f"Deployment/gpu-turnstile-{each}" for each in ("kube-scheduler", "webhook"))
    assert (second in own, second in stock) == (True, False)
    given = environment(containers(own[webhook])[0])
    assert given["GPU_TURNSTILE_WEBHOOK_SCHEDULER_NAME"] == "gpu-turnstile-scheduler"
    assert "SCHEDULER_NAME" not in str(stock[webhook])


def test_values_of_the_extender_reach_it_as_a_sidecar_too(chart: Path) -> None:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    env = {"GPU_TURNSTILE_SCHEDULER_NODE_POLICY": "spread"}
    extender = {"replicas": 5, "env": env, "resources": resources}
    objects = render(chart, {"scheduler": extender, "kubeScheduler": {"replicas": 3}})
    spec = find(objects, "Deployment", "gpu-turnstile-kube-scheduler")["spec"]
    assert spec["replicas"] == 3
    (sidecar,) = spec["template"]["spec"]["initContainers"]
    assert env.items() <= environment(sidecar).items()
    assert sidecar["resources"] == resources


SERVED = {"v1.30.0": False, "v1.35.9-gke.1183000": False}
SERVED |= dict.fromkeys(("v1.36.0-rc.1", "v1.36.2-gke.1183000", "v1.37.0"), True)


@pytest.mark.parametrize(("version", "served"), SERVED.items())
def test_claims_need_a_cluster_that_has_them(version: str, served: bool, chart: Path) -> None:
    done = template(chart, {"components": {"dra": True}}, "--kube-version", version)
    assert (done.returncode == 0) == served, done.stderr
    if not served:
        text = f"components.dra: Forbidden: needs Kubernetes 1.36 or newer, this is {version} ("
        assert text in done.stderr
    plain = template(chart, {}, "--kube-version", version)
    assert plain.returncode == 0, plain.stderr


def test_yaml_reads_on_and_off_as_booleans_which_our_settings_do_not_know(chart: Path) -> None:
    """Unquoted; variables of others stay ``true`` and ``false``."""
    agent = {"GPU_TURNSTILE_NUMA": True, "GPU_TURNSTILE_MIG": False, "PYTHONUNBUFFERED": True}
    values = DRA | {"webhook": {"env": {CLAIMS: True}}, "agent": {"env": agent}}
    specs = pod_specs(render(chart, values))
    (webhook,) = containers(specs["Deployment/gpu-turnstile-webhook"])
    assert environment(webhook)[CLAIMS] == "on"
    expected = {"GPU_TURNSTILE_NUMA": "on", "GPU_TURNSTILE_MIG": "off", "PYTHONUNBUFFERED": "true"}
    for name in ("gpu-turnstile-agent", "gpu-turnstile-agent-dra"):
        (container,) = containers(specs[f"DaemonSet/{name}"])
        assert expected.items() <= environment(container).items()


FORBIDDEN = r"env\.{}: Forbidden: other values of the chart"
ACCEPT, LIMITER = "GPU_TURNSTILE_WEBHOOK_ACCEPT", "GPU_TURNSTILE_ENFORCEMENT"
CLAIMS, PROXY_MODE = "GPU_TURNSTILE_WEBHOOK_CLAIMS", "GPU_TURNSTILE_PROXY_MODE"
DRA = {"components": {"dra": True}}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"enforcment": "vcuda"}, r"dditional propert\w+ '?enforcment'? (is )?not allowed"),
        ({"components": {"veiw": True}}, r"components.*dditional propert\w+ '?veiw"),
        ({"namespaces": {"system": "default"}}, r"namespaces.system"),
        ({"inject": "devices"}, r"inject.*nodes"),
        ({"dialects": {"accept": ["hamy"]}}, r"dialects.accept"),
        ({"dialects": {"accept": ["gpushare", "gpushare-mib"]}}, r"dialects.accept"),
        ({"dialects": {"accept": ["hami"], "namespaces": "some"}}, r"dialects.namespaces"),
        ({"agent": {"env": {LIMITER: "vcuda"}}}, rf"agent\.{FORBIDDEN.format(LIMITER)}"),
        ({"webhook": {"env": {ACCEPT: "hami"}}}, rf"webhook\.{FORBIDDEN.format(ACCEPT)}"),
        ({"proxy": {"env": {PROXY_MODE: "dra"}}}, rf"proxy\.{FORBIDDEN.format(PROXY_MODE)}"),
        ({"webhook": {"env": {CLAIMS: "on"}}}, rf'{CLAIMS}: Forbidden: "on" needs components.dra'),
        (DRA | {"webhook": {"env": {CLAIMS: False}}}, rf'{CLAIMS}: Forbidden: "off" with comp'),
        (DRA | {"webhook": {"env": {CLAIMS: "of"}}}, rf'{CLAIMS}: Unsupported value: "of": on, '),
    ],
)
def test_an_impossible_value_is_refused_with_a_reason(values: Json, text: str, chart: Path) -> None:
    """Helm 3 and Helm 4 say it in other words."""
    done = template(chart, values)
    assert done.returncode != 0
    assert re.search(text, done.stderr), done.stderr


AWAY = DRA | {"webhook": {"env": {CLAIMS: "away"}}}
TRY_OUT = {"components": {"try-out": True}}


@pytest.mark.parametrize(
    "values", [{}, {"scheduling": "stock"}, {"scheduling": "extender"}, DRA, AWAY, TRY_OUT]
)
def test_notes_end_with_a_command(values: Json, chart: Path) -> None:
    file = chart.parent / "notes.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = run("install", "mine", str(chart), "--dry-run=client", "--values", str(file))
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:\n")[2].strip().splitlines()
    assert notes[-1].startswith("  kubectl -n gpu-turnstile rollout status ")
    assert notes[0].startswith("No scheduler sees") == (values.get("scheduling") == "stock")
    claims = values.get("components", {}).get("dra", False)
    for each in ("deployment/gpu-turnstile-claims", "daemonset/gpu-turnstile-agent-dra"):
        assert (f"rollout status {each}" in notes[-1]) == claims
    text, away = " ".join(notes), values == AWAY
    assert ("GPU pods get a claim" in text) == (claims and not away)
    assert ("GPU pods get no claim" in text) == away
    own = "scheduling" not in values
    assert ("second kube-scheduler, of this cluster's version" in text) == (own and values != DRA)
