"""What kustomize makes of deploy/ and of each overlay."""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from agent.cards.cards_file import load_inventory
from contract.names import DEFAULT_DOMAIN
from tests.deploy.creation_examples import BINDINGS
from tests.deploy.kustomize import OVERLAYS, build, build_folder, write_overlay
from tests.deploy.manifests import (
    CUSTOM,
    DEPLOY,
    Json,
    base,
    containers,
    environment,
    find,
    pod_specs,
    read_yaml,
    selects,
)
from tests.deploy.policies import denials
from tests.deploy.policy_examples import PODS
from tests.deploy.schemas import OLDEST, check, newest
from tests.deploy.test_manifests import program, variables

COMPONENTS = sorted(each.name for each in (DEPLOY / "components").iterdir())


def _agent(overlay: str) -> Json:
    return pod_specs(build(overlay))["DaemonSet/gpu-turnstile-agent"]


def _settings_patch(name: str, value: str) -> str:
    """Write a strategic merge patch of the agent's environment."""
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "any"},
            "spec": {
                "template": {
                    "spec": {
                        "containers": [{"name": "agent", "env": [{"name": name, "value": value}]}]
                    }
                }
            },
        }
    )


def _paths(spec: Json) -> set[str]:
    return {each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}


def _identities(objects: list[Json]) -> set[tuple[str, str, str]]:
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in objects
    }


_CERTS = _identities(
    [each for path in (DEPLOY / "base" / "certs").glob("[!k]*.yaml") for each in read_yaml(path)]
)
"""Without the kustomization itself."""
_KUBELET = {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
_NVML = {"/dev", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}
_VCUDA = {"/var/lib/gpu-turnstile", "/sys/fs/cgroup", "/run/containerd"}


@dataclass(frozen=True)
class Overlay:
    """What an overlay needs that deploy/ itself does not.

    Attributes:
        paths: of the host.
        privileged: whether the agent is.
        host_pid: whether it sees the host's processes.
        runtime_class: of the agent's pods.
        gone: of the base's objects.
        operators: whether it has objects of kinds that operators bring.
    """

    paths: frozenset[str] = frozenset()
    privileged: bool = False
    host_pid: bool = False
    runtime_class: str | None = None
    gone: frozenset[tuple[str, str, str]] = frozenset()
    operators: bool = False


EXPECTED = {
    "": Overlay(),
    "overlays/cdi": Overlay(frozenset({"/var/run/cdi", "/etc/cdi"}), runtime_class="nvidia"),
    "overlays/cert-manager": Overlay(gone=frozenset(_CERTS), operators=True),
    "overlays/domain": Overlay(),
    "overlays/driver-auto": Overlay(
        frozenset(_NVML | {"/", "/var/lib/gpu-turnstile"}), privileged=True
    ),
    "overlays/gpu-manager": Overlay(frozenset(_NVML | _VCUDA), privileged=True, host_pid=True),
    "overlays/hami-core": Overlay(frozenset({"/var/lib/gpu-turnstile", "/usr/local/vgpu"})),
    "overlays/host-driver": Overlay(frozenset(_NVML), privileged=True),
    "overlays/hot-standby": Overlay(),
    "overlays/monitoring": Overlay(operators=True),
    "overlays/nvidia-runtime": Overlay(runtime_class="nvidia"),
    "overlays/scheduler-extender": Overlay(),
    "overlays/scheduler-own": Overlay(),
    "overlays/try-out": Overlay(),
    "overlays/use": Overlay(frozenset({"/run/containerd"}), host_pid=True),
    "overlays/vcuda": Overlay(frozenset(_VCUDA), host_pid=True),
    "overlays/view": Overlay(),
}


def test_every_folder_has_its_test() -> None:
    """What is applied elsewhere than here is a component."""
    assert tuple(EXPECTED) == OVERLAYS


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_an_overlay_is_sound_and_takes_no_more_of_the_host_than_it_needs(overlay: str) -> None:
    built, expected = build(overlay), EXPECTED[overlay]
    plain = build("") if overlay else base()  # which test_manifests.py checks
    for each in built:
        for version in (OLDEST, newest()) if each not in plain else ():
            check(each, version)
    assert _identities(base()) - _identities(built) == expected.gone
    assert bool({each["kind"] for each in built} & CUSTOM) == expected.operators
    for spec in pod_specs(built).values():
        _check_settings(spec)
        mounts = {m["name"] for each in containers(spec) for m in each.get("volumeMounts", ())}
        assert mounts == {each["name"] for each in spec.get("volumes", ())}
    agent = _agent(overlay)
    security = containers(agent)[0]["securityContext"]
    assert _paths(agent) == _KUBELET | expected.paths
    assert security["privileged"] is expected.privileged
    assert security["allowPrivilegeEscalation"] is expected.privileged
    assert security["readOnlyRootFilesystem"] is True
    assert security.get("capabilities") == (None if expected.privileged else {"drop": ["ALL"]})
    assert agent.get("hostPID", False) is expected.host_pid
    assert "hostNetwork" not in agent
    assert agent.get("runtimeClassName") == expected.runtime_class
    # Wherever GPU pods run, the agent does.
    assert agent["tolerations"] == [{"operator": "Exists"}]
    assert agent["priorityClassName"] == "system-node-critical"


def _check_settings(spec: Json) -> None:
    """Assert that every variable of ours is an option of its program, and can be read."""
    for container in containers(spec):
        if container["name"] == "kube-scheduler":  # not ours
            continue
        known = variables(program(container))
        for name, value in environment(container).items():
            if not name.startswith("NVIDIA_"):
                known[name].type.convert(value, known[name], None)


def test_nvidias_runtime_is_that_of_gpu_pods_too() -> None:
    built = pod_specs(build("overlays/nvidia-runtime"))
    (webhook,) = containers(built["Deployment/gpu-turnstile-webhook"])
    given = environment(webhook)["GPU_TURNSTILE_WEBHOOK_RUNTIME_CLASS"]
    assert given == built["DaemonSet/gpu-turnstile-agent"]["runtimeClassName"]


def test_deploy_itself_is_the_base() -> None:
    assert _identities(build("")) == _identities(base())


def test_paths_that_the_kubelet_mounts_on_are_the_same_on_both_sides() -> None:
    """The agent tells the kubelet paths as it sees them itself."""
    checked = set()
    for overlay in ("overlays/vcuda", "overlays/hami-core", "overlays/gpu-manager"):
        spec = _agent(overlay)
        mounted = {m["name"]: m["mountPath"] for m in containers(spec)[0]["volumeMounts"]}
        for each in spec["volumes"]:
            if each["name"] in ("state", "hami-library"):
                checked.add(each["name"])
                assert mounted[each["name"]] == each["hostPath"]["path"]
        assert environment(containers(spec)[0])["GPU_TURNSTILE_STATE_DIR"] == mounted["state"]
    assert checked == {"state", "hami-library"}


@pytest.mark.parametrize("overlay", ["overlays/vcuda", "overlays/use"])
def test_the_runtimes_socket_is_in_what_is_mounted(overlay: str) -> None:
    spec = _agent(overlay)
    (mount,) = (m for m in containers(spec)[0]["volumeMounts"] if m["name"] == "containerd")
    socket = Path(environment(containers(spec)[0])["GPU_TURNSTILE_CRI_SOCKET"])
    assert str(socket.parent) == mount["mountPath"]


def test_cert_manager_leaves_nothing_of_ours_to_renew_certificates() -> None:
    built = build("overlays/cert-manager")
    assert _CERTS
    assert not _CERTS & _identities(built)
    certificate = find(built, "Certificate", "gpu-turnstile-webhook")
    assert certificate["spec"]["dnsNames"] == ["gpu-turnstile-webhook.gpu-turnstile.svc"]
    mounted = pod_specs(built)["Deployment/gpu-turnstile-webhook"]["volumes"]
    assert certificate["spec"]["secretName"] in [
        each["secret"]["secretName"] for each in mounted if "secret" in each
    ]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        found = find(built, kind, "gpu-turnstile")["metadata"]["annotations"]
        assert found == {"cert-manager.io/inject-ca-from": "gpu-turnstile/gpu-turnstile-webhook"}


def test_the_domain_overlay_puts_it_everywhere() -> None:
    """All that is not the domain stays to the letter, and nothing is left of the old one."""
    built = build("overlays/domain")
    plain = build("")
    assert DEFAULT_DOMAIN in str(plain)
    assert str(plain).replace(DEFAULT_DOMAIN, "gpu.example.com") == str(built)


def test_the_domain_is_replaced_after_any_component(tmp_path: Path) -> None:
    others = [each for each in COMPONENTS if each not in ("domain", "cert-manager", "try-out")]
    folder = write_overlay(tmp_path / "all", [*others, "domain"])
    settings = DEPLOY / "overlays" / "domain" / "settings.yaml"
    (folder / "settings.yaml").write_bytes(settings.read_bytes())
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    (folder / "kustomization.yaml").write_text(
        text.replace("resources:\n", "resources:\n- settings.yaml\n"), encoding="utf-8"
    )
    assert DEFAULT_DOMAIN not in str(build_folder(folder))


_PATTERN = "gpu-turnstile-agent(-standby)?"
"""By which deploy/README.md, and every component, patches agent and standby."""


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_patches_the_agent_and_its_standby(component: str) -> None:
    """It may be added before the standby is, or after it."""
    (found,) = read_yaml(DEPLOY / "components" / component / "kustomization.yaml")
    for each in found.get("patches", ()):
        wanted = each.get("target") or yaml.safe_load(each["patch"])
        assert wanted["kind"] != "DaemonSet" or wanted.get("name") == _PATTERN


def test_the_standby_is_the_agent_with_all_components_in_any_order(tmp_path: Path) -> None:
    others = [each for each in COMPONENTS if each not in ("domain", "hot-standby")]
    found = []
    for chosen in (["hot-standby", *others], [*others, "hot-standby"]):
        specs = pod_specs(build_folder(write_overlay(tmp_path / chosen[0], chosen)))
        standby = specs.pop("DaemonSet/gpu-turnstile-agent-standby")
        assert standby == specs["DaemonSet/gpu-turnstile-agent"]
        assert {"state", "cards", "cdi"} <= {each["name"] for each in standby["volumes"]}
        found.append(specs)
    assert found[0] == found[1]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_any_overlay_can_have_a_standby_and_another_image(overlay: str, tmp_path: Path) -> None:
    """One line sets the image."""
    image = "ghcr.io/gpu-turnstile/gpu-turnstile"
    folder = write_overlay(
        tmp_path / "mine",
        [] if overlay == "overlays/hot-standby" else ["hot-standby"],
        resources=[os.path.relpath(DEPLOY / (overlay or "base"), (tmp_path / "mine").resolve())],
        images=[{"name": image, "newName": "registry.example.com/gpu", "newTag": "9.9.9"}],
    )
    more, plain = pod_specs(build_folder(folder)), pod_specs(build(overlay))
    for spec in plain.values():
        for each in containers(spec):
            assert each["image"].startswith((f"{image}:", "registry.k8s.io/kube-scheduler:"))
    assert (
        more.pop("DaemonSet/gpu-turnstile-agent-standby") == more["DaemonSet/gpu-turnstile-agent"]
    )
    plain.pop("DaemonSet/gpu-turnstile-agent-standby", None)
    images = re.compile(f"{image}:[0-9.]+")
    assert str(more) == images.sub("registry.example.com/gpu:9.9.9", str(plain))


def test_a_patch_of_settings_reaches_the_standby(tmp_path: Path) -> None:
    """By the target that deploy/README.md shows."""
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert f'- target: {{kind: DaemonSet, name: "{_PATTERN}"}}' in readme
    folder = write_overlay(
        tmp_path / "mine",
        ["hot-standby"],
        patches=[
            {
                "target": {"kind": "DaemonSet", "name": _PATTERN},
                "patch": _settings_patch("GPU_TURNSTILE_POLICY", "spread"),
            }
        ],
    )
    for name, spec in pod_specs(build_folder(folder)).items():
        if name.startswith("DaemonSet/"):
            assert environment(containers(spec)[0])["GPU_TURNSTILE_POLICY"] == "spread", name


def test_no_daemon_set_takes_the_pods_of_the_other() -> None:
    sets = [each for each in build("overlays/hot-standby") if each["kind"] == "DaemonSet"]
    assert len(sets) == 2
    for each in sets:
        selector = each["spec"]["selector"]["matchLabels"]
        selected = [
            one["metadata"]["name"]
            for one in sets
            if selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert selected == [each["metadata"]["name"]]


def test_the_standby_is_replaced_as_the_agent_is() -> None:
    built = build("overlays/hot-standby")
    agent, standby = (
        find(built, "DaemonSet", f"gpu-turnstile-agent{suffix}")["spec"]
        for suffix in ("", "-standby")
    )
    assert standby["updateStrategy"] == agent["updateStrategy"]


def test_whatever_finds_the_agent_finds_the_standby() -> None:
    """The NetworkPolicy, and the PodMonitor of the monitoring component."""
    monitor = find(
        read_yaml(DEPLOY / "components" / "monitoring" / "scrape.yaml"),
        "PodMonitor",
        "gpu-turnstile-agent",
    )
    policy = find(build("overlays/hot-standby"), "NetworkPolicy", "gpu-turnstile-agent")
    for selector in (monitor["spec"]["selector"], policy["spec"]["podSelector"]):
        for each in build("overlays/hot-standby"):
            if each["kind"] == "DaemonSet":
                labels = each["spec"]["template"]["metadata"]["labels"]
                assert selects(selector, labels), each["metadata"]["name"]


def test_a_scheduler_that_is_listed_may_choose_cards() -> None:
    (example,) = (each for each in PODS if each.title == "the scheduler stamps anew")
    old: Json = {"metadata": {"annotations": dict(example.annotations)}, "spec": {}}
    (binding,) = (each for each in BINDINGS if each.title == "a scheduler brings its choice")
    for name, update in (("pod-annotations", example.update(old)), ("bindings", binding.request())):
        policy = find(
            build("overlays/gpu-manager"), "ValidatingAdmissionPolicy", f"gpu-turnstile-{name}"
        )
        (listed,) = (e for e in policy["spec"]["variables"] if e["name"] == "schedulers")
        assert listed["expression"] == "['system:kube-scheduler']"
        stranger = replace(update, user="system:serviceaccount:team:chooser")
        assert denials(policy, stranger) != []
        listed["expression"] = "['system:kube-scheduler', 'system:serviceaccount:team:chooser']"
        assert denials(policy, stranger) == []


def test_an_agent_comes_only_where_gpu_manager_is_not() -> None:
    affinity = _agent("overlays/gpu-manager")["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "gpu-turnstile.io/gpus", "operator": "In", "values": ["true"]},
        {"key": "nvidia-device-enable", "operator": "NotIn", "values": ["enable"]},
    ]


def test_the_try_out_runs_on_any_node_with_cards_that_the_agent_reads(tmp_path: Path) -> None:
    built = build("overlays/try-out")
    spec = pod_specs(built)["DaemonSet/gpu-turnstile-agent"]
    assert "affinity" not in spec
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    (cards,) = (each for each in built if each["kind"] == "ConfigMap")
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cards")
    assert volume["configMap"]["name"] == cards["metadata"]["name"]
    (mount,) = (m for m in containers(spec)[0]["volumeMounts"] if m["name"] == "cards")
    given = environment(containers(spec)[0])
    assert given["GPU_TURNSTILE_CARDS"] == f"{mount['mountPath']}/cards.yaml"
    assert not [each for each in given if each.startswith("NVIDIA_")]
    file = tmp_path / "cards.yaml"
    file.write_text(cards["data"]["cards.yaml"], encoding="utf-8")
    inventory = load_inventory(file)
    assert len(inventory.cards) == 12
    assert {each.device for each in inventory.cards} == {"/dev/null"}
