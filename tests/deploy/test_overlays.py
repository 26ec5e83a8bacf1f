"""What kustomize makes of deploy/ and of each overlay."""

import os
import re
import subprocess
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from agent.__main__ import main as agent_command
from agent.cards.cards_file import load_inventory
from agent.settings import Settings
from contract.names import DEFAULT_DOMAIN
from tests.deploy.creation_examples import BINDINGS
from tests.deploy.kustomize import OVERLAYS, build, build_folder, kustomize, write_overlay
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
)
from tests.deploy.policies import denials
from tests.deploy.policy_examples import PODS
from tests.deploy.schemas import OLDEST, check, newest
from tests.deploy.soundness import check_objects

COMPONENTS = sorted(each.name for each in (DEPLOY / "components").iterdir())


_PROXY = "DaemonSet/gpu-turnstile-proxy"


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
_ALWAYS = {
    *("/run/gpu-turnstile/device-plugins", "/var/lib/kubelet/device-plugins"),
    "/var/lib/kubelet/pod-resources",
}
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
        agent_nodes: labels of the nodes on which the agent runs, of those with a proxy.
    """

    paths: frozenset[str] = frozenset()
    privileged: bool = False
    host_pid: bool = False
    runtime_class: str | None = None
    gone: frozenset[tuple[str, str, str]] = frozenset()
    operators: bool = False
    agent_nodes: Mapping[str, str] = field(default_factory=dict)


_STATE = "/var/lib/gpu-turnstile"
_OPERATOR = Overlay(
    frozenset({"/var/run/cdi", "/etc/cdi", "/", _STATE, "/run/nvidia/validations"}),
    runtime_class="nvidia",
    agent_nodes={"nvidia.com/gpu.deploy.container-toolkit": "true"},
)
EXPECTED = {
    "": Overlay(),
    "overlays/cdi": Overlay(frozenset({"/var/run/cdi", "/etc/cdi"}), runtime_class="nvidia"),
    "overlays/cert-manager": Overlay(gone=frozenset(_CERTS), operators=True),
    "overlays/domain": Overlay(),
    "overlays/driver-auto": Overlay(
        frozenset(_NVML | {"/", "/var/lib/gpu-turnstile"}), privileged=True
    ),
    "overlays/gpu-manager": Overlay(frozenset(_NVML | _VCUDA), privileged=True, host_pid=True),
    "overlays/gpu-operator": _OPERATOR,
    "overlays/gpu-operator-nri": replace(_OPERATOR, runtime_class=None),
    "overlays/hami-core": Overlay(frozenset({"/var/lib/gpu-turnstile", "/usr/local/vgpu"})),
    "overlays/host-driver": Overlay(frozenset(_NVML), privileged=True),
    "overlays/k3s": Overlay(
        frozenset({"/run/k3s/containerd"}), host_pid=True, runtime_class="nvidia"
    ),
    "overlays/monitoring": Overlay(operators=True),
    "overlays/nvidia-runtime": Overlay(runtime_class="nvidia"),
    "overlays/openshift": replace(_OPERATOR, operators=True),
    "overlays/scheduler-extender": Overlay(),
    "overlays/scheduler-own": Overlay(),
    "overlays/try-out": Overlay(),
    "overlays/use": Overlay(frozenset({"/run/containerd"}), host_pid=True),
    "overlays/vcuda": Overlay(frozenset(_VCUDA), host_pid=True),
    "overlays/view": Overlay(),
    "overlays/void": Overlay(),
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
    assert overlay or _identities(base()) == _identities(built)
    assert bool({each["kind"] for each in built} & CUSTOM) == expected.operators
    check_objects(
        [each for each in built if each["kind"] not in CUSTOM],
        privileged_agent=expected.privileged,
    )
    agent, proxy = _agent(overlay), pod_specs(built)[_PROXY]
    plain_proxy = pod_specs(base())[_PROXY]
    assert _paths(agent) == _ALWAYS | expected.paths
    assert agent.get("hostPID", False) is expected.host_pid
    assert agent.get("runtimeClassName") == expected.runtime_class
    # Wherever GPU pods run, the agent does, and the proxy before it.
    assert agent["tolerations"] == [{"operator": "Exists"}]
    assert agent["priorityClassName"] == "system-node-critical"
    for key in ("affinity", "tolerations", "priorityClassName"):
        assert proxy.get(key) == agent.get(key), key
    nodes = dict(expected.agent_nodes) | (proxy.get("nodeSelector") or {})
    assert (agent.get("nodeSelector") or {}) == nodes
    # Nothing that is chosen for the agent reaches the proxy.
    assert proxy["containers"] == plain_proxy["containers"]
    assert proxy["volumes"] == plain_proxy["volumes"]
    assert "initContainers" not in proxy
    assert not {"hostPID", "runtimeClassName"} & proxy.keys()


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_the_agent_takes_its_settings(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(containers(_agent(overlay))[0]).items():
        monkeypatch.setenv(name, value)
    given = agent_command.make_context("agent", ["--node-name", "n1"]).params
    assert given.pop("log_level") == "info"
    assert Settings(**given)


def test_nvidias_runtime_is_that_of_gpu_pods_too() -> None:
    built = pod_specs(build("overlays/nvidia-runtime"))
    (webhook,) = containers(built["Deployment/gpu-turnstile-webhook"])
    given = environment(webhook)["GPU_TURNSTILE_WEBHOOK_RUNTIME_CLASS"]
    assert given == built["DaemonSet/gpu-turnstile-agent"]["runtimeClassName"]


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


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_the_domain_is_replaced_wherever_its_component_stands(last: bool, tmp_path: Path) -> None:
    others = [each for each in COMPONENTS if each not in ("domain", "cert-manager", "try-out")]
    order = [*others, "domain"] if last else ["domain", *others]
    folder = write_overlay(tmp_path / "all", order)
    settings = DEPLOY / "overlays" / "domain" / "settings.yaml"
    (folder / "settings.yaml").write_bytes(settings.read_bytes())
    text = (folder / "kustomization.yaml").read_text(encoding="utf-8")
    (folder / "kustomization.yaml").write_text(
        text.replace("resources:\n", "resources:\n- settings.yaml\n"), encoding="utf-8"
    )
    assert DEFAULT_DOMAIN not in str(build_folder(folder))


@pytest.mark.parametrize(
    ("components", "missing"),
    [
        (["scheduler-own"], "Deployment.v1.apps/gpu-turnstile-scheduler.gpu-turnstile"),
        (["use", "view-use"], "Deployment.v1.apps/gpu-turnstile-view.gpu-turnstile"),
    ],
)
def test_a_component_without_the_one_it_needs_is_refused(
    components: list[str], missing: str, tmp_path: Path
) -> None:
    done = kustomize(write_overlay(tmp_path / "mine", components))
    assert done.returncode != 0
    assert f"components/{components[-1]}': no resource matches" in done.stderr
    assert missing in done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_every_object_says_which_component_it_is_of(overlay: str) -> None:
    """By these labels it is pruned, and a component removed."""
    names = {each.name for each in (DEPLOY / "base").iterdir() if each.is_dir()}
    taken = yaml.safe_load((DEPLOY / (overlay or "base") / "kustomization.yaml").read_bytes())
    names |= {Path(each).name for each in taken.get("components", ())}
    for each in build(overlay):
        if each["metadata"]["name"] == "gpu-turnstile-settings":
            continue  # read by kustomize alone
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "gpu-turnstile"
        assert labels["app.kubernetes.io/component"] in names | {"namespaces"}


def test_what_a_component_brings_has_its_label_and_nothing_else_has(tmp_path: Path) -> None:
    plain = _identities(build(""))
    for name in COMPONENTS:
        needs = {"scheduler-own": ["scheduler-extender"], "view-use": ["view"]}.get(name, [])
        if name == "domain":
            continue
        built = build_folder(write_overlay(tmp_path / name, [*needs, name]))
        before = build_folder(write_overlay(tmp_path / f"{name}-without", needs))
        found = [
            each
            for each in built
            if each["metadata"]["labels"]["app.kubernetes.io/component"] == name
        ]
        assert _identities(found) == _identities(built) - _identities(before) - plain


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")
def test_two_lines_set_every_image_and_the_proxys_is_set_alone(
    overlay: str, tmp_path: Path
) -> None:
    published = "ghcr.io/gpu-turnstile/gpu-turnstile"
    plain = pod_specs(build(overlay))
    for spec in plain.values():
        for each in containers(spec):
            assert each["image"].startswith(
                (f"{published}:", f"{published}-proxy:", "registry.k8s.io/kube-scheduler:")
            )
    folder = write_overlay(
        tmp_path / "mine",
        resources=[os.path.relpath(DEPLOY / (overlay or "base"), (tmp_path / "mine").resolve())],
        images=[
            {"name": published, "newName": "registry.example.com/gpu", "newTag": "9.9.9"},
            {
                "name": f"{published}-proxy",
                "newName": "registry.example.com/gpu",
                "newTag": "9.9.8",
            },
        ],
    )
    text = re.sub(f"{published}-proxy:[0-9.]+", "registry.example.com/gpu:9.9.8", str(plain))
    text = re.sub(f"{published}:[0-9.]+", "registry.example.com/gpu:9.9.9", text)
    assert str(pod_specs(build_folder(folder))) == text


def test_a_patch_of_settings_reaches_the_agent_alone(tmp_path: Path) -> None:
    """By the target that deploy/README.md shows."""
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    assert "- target: {kind: DaemonSet, name: gpu-turnstile-agent}" in readme
    folder = write_overlay(
        tmp_path / "mine",
        patches=[
            {
                "target": {"kind": "DaemonSet", "name": "gpu-turnstile-agent"},
                "patch": _settings_patch("GPU_TURNSTILE_POLICY", "spread"),
            }
        ],
    )
    found = pod_specs(build_folder(folder))
    given = environment(containers(found["DaemonSet/gpu-turnstile-agent"])[0])
    assert given["GPU_TURNSTILE_POLICY"] == "spread"
    assert found[_PROXY] == pod_specs(build(""))[_PROXY]


def test_a_scheduler_that_is_listed_may_choose_cards() -> None:
    (example,) = (each for each in PODS if each.title == "the scheduler stamps anew")
    old: Json = {"metadata": {"annotations": dict(example.annotations)}, "spec": {}}
    (binding,) = (each for each in BINDINGS if each.title == "a scheduler brings its choice")
    for name, update in (("pod-annotations", example.update(old)), ("bindings", binding.request())):
        built = build("overlays/gpu-manager")
        policy = deepcopy(find(built, "ValidatingAdmissionPolicy", f"gpu-turnstile-{name}"))
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


# --- on nodes of the GPU Operator -----------------------------------------------------------


@pytest.mark.parametrize("overlay", ["overlays/gpu-operator", "overlays/gpu-operator-nri"])
def test_the_agent_starts_once_the_operator_has_the_driver_ready_and_ends_while_it_waits(
    overlay: str, tmp_path: Path
) -> None:
    """As after a boot, when the driver comes minutes later."""
    (waits,) = _agent(overlay)["initContainers"]
    ready = "/run/nvidia/validations/toolkit-ready"
    (mount,) = waits["volumeMounts"]
    assert Path(ready).parent == Path(mount["mountPath"])
    command = [each.replace(ready, str(tmp_path / "ready")) for each in waits["command"]]
    for ends in ("ready", "told"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "waiting for the GPU Operator" in process.stdout.readline()
                if ends == "told":
                    process.terminate()
                else:
                    (tmp_path / "ready").touch()
                assert process.wait(30) == (143 if ends == "told" else 0)
            finally:
                process.kill()
        (tmp_path / "ready").unlink(missing_ok=True)


def test_of_the_nri_plugin_the_agents_container_asks_for_all_cards_and_nobody_else_does() -> None:
    wanted = {"nvidia.cdi.k8s.io/container.agent": "management.nvidia.com/gpu=all"}
    for each in build("overlays/gpu-operator-nri"):
        if each["kind"] in ("DaemonSet", "Deployment"):
            found = each["spec"]["template"]["metadata"].get("annotations") or {}
            asks = {key: value for key, value in found.items() if "cdi" in key}
            assert asks == (wanted if each["metadata"]["name"] == "gpu-turnstile-agent" else {})


def test_openshift_lets_agent_and_proxy_be_what_they_ask_to_be() -> None:
    built = build("overlays/openshift")
    scc = find(built, "SecurityContextConstraints", "gpu-turnstile-node")
    required = ("allowedCapabilities", "defaultAddCapabilities", "priority")
    assert [each for each in required if each not in scc] == []  # by OpenShift's own schema
    assert [key for key in scc if key.startswith("allow") and scc[key]] == [
        "allowHostDirVolumePlugin"
    ]
    specs = [pod_specs(built)[f"DaemonSet/gpu-turnstile-{each}"] for each in ("agent", "proxy")]
    for spec in specs:
        assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
        kinds = {key for each in spec["volumes"] for key in each if key != "name"}
        assert kinds <= set(scc["volumes"])
    bound = [
        each
        for each in built
        if each["kind"] == "RoleBinding" and each["metadata"]["name"] == "gpu-turnstile-scc"
    ]
    accounts = {each["name"] for binding in bound for each in binding["subjects"]}
    assert accounts == {
        *(spec["serviceAccountName"] for spec in specs),
        "system:serviceaccounts:gpu-turnstile",
    }
