"""What kustomize makes of deploy/, of each overlay, and of each component."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from agent.__main__ import main as agent_command
from agent.cards.cards_file import load_inventory
from agent.settings import Settings
from contract.names import DEFAULT_DOMAIN
from release.chart import NEEDS
from tests.deploy.kustomize import (
    COMPONENTS,
    EXCLUDED,
    OVERLAYS,
    SCHEDULERS,
    build,
    build_components,
    kustomize,
    taken_by,
    write_overlay,
)
from tests.deploy.manifests import (
    CUSTOM,
    DEPLOY,
    Json,
    base,
    containers,
    environment,
    find,
    pod_specs,
)
from tests.deploy.schemas import OLDEST, check, newest
from tests.deploy.soundness import check_objects

_LABEL = "app.kubernetes.io/component"
PLAIN = base()
_AGENT, _PROXY = "DaemonSet/gpu-turnstile-agent", "DaemonSet/gpu-turnstile-proxy"


_STATE, _CONTAINERD = "/var/lib/gpu-turnstile", "/run/containerd"
_TOOLKIT = ("nvidia.com/gpu.deploy.container-toolkit", "true")
TAKES: dict[str, set[object]] = {
    "cdi": {"/var/run/cdi", "/etc/cdi"},
    "driver-auto": {"/", _STATE},
    "gpu-operator": {"/run/nvidia/validations", _TOOLKIT},
    "hami-core": {_STATE, "/usr/local/vgpu"},
    "host-driver": {"/dev", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "privileged"},
    "mps": {"/run/gpu-turnstile/mps"},
    "runtime-class": {("runtimeClassName", "nvidia")},
    "use": {_CONTAINERD, ("hostPID", True)},
    "vcuda": {_STATE, "/sys/fs/cgroup", _CONTAINERD, ("hostPID", True)},
}
"""What the agent takes of the host beside what it always takes, and the labels of its nodes.

Every other component takes nothing.
"""
_ALWAYS = {
    *("/run/gpu-turnstile/device-plugins", "/var/lib/kubelet/device-plugins"),
    "/var/lib/kubelet/pod-resources",
}


def _identities(objects: list[Json]) -> set[tuple[str, str, str]]:
    return {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
        for each in objects
    }


def _agent(objects: list[Json]) -> Json:
    return pod_specs(objects)[_AGENT]


@pytest.fixture(params=[*OVERLAYS, *COMPONENTS], ids=lambda each: each or "deploy")
def built(request: pytest.FixtureRequest) -> tuple[list[Json], list[str], bool]:
    """Objects, the components that made them, and whether it is the overlay for k3s."""
    name = request.param
    if name in OVERLAYS:
        return build(name), taken_by(name), name == "overlays/k3s"
    taken = [*NEEDS.get(name, ()), name]
    return build_components(*taken), taken, False


def test_rendered_objects_are_valid_and_use_no_more_of_the_host_than_they_need(
    built: tuple[list[Json], list[str], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, taken, of_k3s = built
    plain = build("")  # which test_manifests.py checks
    for each in objects:
        for version in (OLDEST, newest()) if each not in plain else ():
            check(each, version)
    expected = {one for each in taken for one in TAKES.get(each, ())}
    check_objects(
        [each for each in objects if each["kind"] not in CUSTOM],
        privileged_agent="privileged" in expected,
        privileged_mps="mps-host-driver" in taken,
    )
    agent, proxy = _agent(objects), pod_specs(objects)[_PROXY]
    found = {each["hostPath"]["path"] for each in agent["volumes"] if "hostPath" in each}
    found |= {(key, agent[key]) for key in ("hostPID", "runtimeClassName") if key in agent}
    renamed: dict[object, str] = {_CONTAINERD: "/run/k3s/containerd"} if of_k3s else {}
    assert found == _ALWAYS | {renamed.get(each, each) for each in expected} - {
        *("privileged", _TOOLKIT)
    }
    # Wherever GPU pods run, the agent does, and the proxy before it.
    assert agent["tolerations"] == [{"operator": "Exists"}]
    assert agent["priorityClassName"] == "system-node-critical"
    for key in ("affinity", "tolerations", "priorityClassName"):
        assert proxy.get(key) == agent.get(key), key
    nodes = dict([_TOOLKIT] if _TOOLKIT in expected else []) | (proxy.get("nodeSelector") or {})
    assert (agent.get("nodeSelector") or {}) == nodes
    # Nothing that is chosen for the agent reaches the proxy.
    of_base = pod_specs(plain)[_PROXY]
    assert (proxy["containers"], proxy["volumes"]) == (of_base["containers"], of_base["volumes"])
    assert not {"hostPID", "initContainers", "runtimeClassName"} & proxy.keys()
    _check_settings(agent, monkeypatch)


def _check_settings(agent: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent takes its settings, and finds what they name where it is mounted."""
    (container,) = agent["containers"]
    given = environment(container)
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    for each in agent["volumes"]:
        if each["name"] in ("state", "hami-library"):  # paths that it returns to the kubelet
            assert mounts[each["name"]] == each["hostPath"]["path"]
    if "GPU_TURNSTILE_CRI_SOCKET" in given:
        assert str(Path(given["GPU_TURNSTILE_CRI_SOCKET"]).parent) == mounts["containerd"]
    assert given.get("GPU_TURNSTILE_STATE_DIR") == mounts.get("state")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    options = agent_command.make_context("agent", ["--node-name", "n1"]).params
    assert options.pop("log_level") == "info"
    assert Settings(**options)


def test_every_object_has_the_label_of_its_component(
    built: tuple[list[Json], list[str], bool],
) -> None:
    """By these labels it is pruned, and a component removed."""
    objects, taken, _ = built
    plain = _identities(PLAIN)
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "gpu-turnstile"
        there = _identities([each]) <= plain
        folder = DEPLOY / "base" / labels[_LABEL]
        names = {"scheduler-queues" if one == "scheduler-extender-queues" else one for one in taken}
        assert (
            folder.is_dir() or labels[_LABEL] == "namespaces" if there else labels[_LABEL] in names
        )


def test_only_cert_manager_removes_objects() -> None:
    certs = _identities(
        [each for each in build("") if each["metadata"]["labels"][_LABEL] == "certs"]
    )
    for name in COMPONENTS:
        removed = _identities(PLAIN) - _identities(build_components(*NEEDS.get(name, ()), name))
        assert removed == (certs if name == "cert-manager" else set()), name
    built = build_components("cert-manager")
    certificate = find(built, "Certificate", "gpu-turnstile-webhook")
    assert certificate["spec"]["dnsNames"] == ["gpu-turnstile-webhook.gpu-turnstile.svc"]
    mounted = pod_specs(built)["Deployment/gpu-turnstile-webhook"]["volumes"]
    assert certificate["spec"]["secretName"] in [
        each["secret"]["secretName"] for each in mounted if "secret" in each
    ]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        found = find(built, kind, "gpu-turnstile")["metadata"]["annotations"]
        assert found == {"cert-manager.io/inject-ca-from": "gpu-turnstile/gpu-turnstile-webhook"}


def test_nvidias_runtime_is_that_of_gpu_pods_too() -> None:
    specs = pod_specs(build("overlays/nvidia-runtime"))
    (webhook,) = containers(specs["Deployment/gpu-turnstile-webhook"])
    given = environment(webhook)["GPU_TURNSTILE_WEBHOOK_RUNTIME_CLASS"]
    assert given == specs[_AGENT]["runtimeClassName"]


def test_the_component_domain_replaces_the_domain_and_nothing_else() -> None:
    plain, built = build(""), build_components("domain")
    assert DEFAULT_DOMAIN in str(plain)
    assert str(plain).replace(DEFAULT_DOMAIN, "gpu.example.com") == str(built)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize("excluded", SCHEDULERS, ids=min)
def test_the_domain_is_replaced_wherever_its_component_stands(
    excluded: frozenset[str], last: bool
) -> None:
    without = excluded | {"domain", "cert-manager", "try-out"}
    others = [each for each in COMPONENTS if each not in without]
    order = [*others, "domain"] if last else ["domain", *others]
    assert DEFAULT_DOMAIN not in str(build_components(*order))


def test_replacements_select_objects_by_name() -> None:
    """kustomize 5.5, of kubectl 1.32, silently selects nothing by a pattern here."""
    for file in sorted((DEPLOY / "components").glob("*/kustomization.yaml")):
        for replacement in yaml.safe_load(file.read_bytes()).get("replacements", []):
            for target in replacement["targets"]:
                name = target["select"].get("name", "")
                assert re.fullmatch(r"[a-z0-9.-]*", name), f"{file}: {name}"


_LACKS = "no resource matches .*Deployment.v1.apps/gpu-turnstile-{}.gpu-turnstile"


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        (["scheduler-preemption"], _LACKS.format("kube-scheduler")),
        (["scheduler-extender-preemption"], _LACKS.format("scheduler")),
        (["scheduler-queues"], _LACKS.format("kube-scheduler")),
        (["scheduler-extender-queues"], _LACKS.format("scheduler")),
        (["use", "view-use"], _LACKS.format("view")),
        # Each would choose cards without knowing of the other's choices.
        *(
            ([other, each], "testing value /spec/variables/1 failed")
            for each, other in EXCLUDED.items()
        ),
    ],
    ids="+".join,
)
def test_a_component_is_refused_without_the_one_it_needs_and_beside_another_extender(
    components: list[str], reason: str, tmp_path: Path
) -> None:
    done = kustomize(write_overlay(tmp_path / "mine", components))
    assert done.returncode != 0
    assert re.search(f"components/{components[-1]}': {reason}", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        ("dialects", "nothing selected by ConfigMap.*gpu-turnstile-dialects"),
        ("dialects-all", "missing path: /webhooks/3/name"),
    ],
)
def test_a_component_without_its_settings_or_entry_is_refused(
    component: str, reason: str, tmp_path: Path
) -> None:
    folder = write_overlay(tmp_path / "mine")
    file = folder / "kustomization.yaml"
    path = os.path.relpath(DEPLOY / "components" / component, folder.resolve())
    file.write_text(file.read_text("utf-8").replace("components: []", f"components: [{path}]"))
    done = kustomize(folder)
    assert done.returncode != 0
    assert re.search(reason, done.stderr), done.stderr


def test_agents_run_only_on_nodes_without_gpu_manager() -> None:
    affinity = _agent(build("overlays/gpu-manager"))["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "gpu-turnstile.io/gpus", "operator": "In", "values": ["true"]},
        {"key": "nvidia-device-enable", "operator": "NotIn", "values": ["enable"]},
        {"key": "gpu-turnstile.io/mode", "operator": "NotIn", "values": ["dra"]},
    ]


def test_the_try_out_runs_on_any_node_with_cards_that_the_agent_reads(tmp_path: Path) -> None:
    objects = build("overlays/try-out")
    spec = _agent(objects)
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    no_claims = {"key": "gpu-turnstile.io/mode", "operator": "NotIn", "values": ["dra"]}
    assert required["nodeSelectorTerms"] == [{"matchExpressions": [no_claims]}]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    (cards,) = (each for each in objects if each["kind"] == "ConfigMap")
    (volume,) = (each for each in spec["volumes"] if each["name"] == "cards")
    assert volume["configMap"]["name"] == cards["metadata"]["name"]
    (mount,) = (m for m in containers(spec)[0]["volumeMounts"] if m["name"] == "cards")
    given = environment(containers(spec)[0])
    assert given["GPU_TURNSTILE_CARDS"] == f"{mount['mountPath']}/cards.yaml"
    assert not [each for each in given if each.startswith("NVIDIA_")]
    file = tmp_path / "cards.yaml"
    file.write_text(cards["data"]["cards.yaml"], encoding="utf-8")
    assert [each.device for each in load_inventory(file).cards] == ["/dev/null"] * 12


# --- on nodes of the GPU Operator -----------------------------------------------------------


def test_the_agent_starts_once_the_operator_has_the_driver_ready_and_ends_while_it_waits(
    tmp_path: Path,
) -> None:
    """As after a boot, when the driver comes minutes later."""
    (waits,) = _agent(build("overlays/gpu-operator"))["initContainers"]
    ready = "/run/nvidia/validations/toolkit-ready"
    (mount,) = waits["volumeMounts"]
    assert Path(ready).parent == Path(mount["mountPath"])
    command = [each.replace(ready, str(tmp_path / "ready")) for each in waits["command"]]
    for ends in ("ready", "!stopped"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "waiting for the GPU Operator" in process.stdout.readline()
                if ends == "!stopped":
                    process.terminate()
                else:
                    (tmp_path / "ready").touch()
                assert process.wait(30) == (143 if ends == "!stopped" else 0)
            finally:
                process.kill()
        (tmp_path / "ready").unlink(missing_ok=True)


def test_only_the_agents_container_requests_all_cards_from_the_nri_plugin() -> None:
    requested: dict[tuple[str, str], str] = {}
    for each in build("overlays/gpu-operator-nri"):
        if each["kind"] in ("DaemonSet", "Deployment"):
            found = each["spec"]["template"]["metadata"].get("annotations") or {}
            requested |= {
                (each["metadata"]["name"], key): found[key] for key in found if "cdi" in key
            }
    key = "gpu-turnstile-agent", "nvidia.cdi.k8s.io/container.agent"
    assert requested == {key: "management.nvidia.com/gpu=all"}


def test_openshift_admits_agent_and_proxy() -> None:
    objects = build("overlays/openshift")
    scc = find(objects, "SecurityContextConstraints", "gpu-turnstile-node")
    required = ("allowedCapabilities", "defaultAddCapabilities", "priority")
    assert [each for each in required if each not in scc] == []  # by OpenShift's own schema
    assert [key for key in scc if key.startswith("allow") and scc[key]] == [
        "allowHostDirVolumePlugin"
    ]
    specs = [pod_specs(objects)[each] for each in (_AGENT, _PROXY)]
    for spec in specs:
        assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
        kinds = {key for each in spec["volumes"] for key in each if key != "name"}
        assert kinds <= set(scc["volumes"])
    accounts = {
        each["name"]
        for binding in objects
        if binding["kind"] == "RoleBinding" and binding["metadata"]["name"] == "gpu-turnstile-scc"
        for each in binding["subjects"]
    }
    assert accounts == {
        *(spec["serviceAccountName"] for spec in specs),
        "system:serviceaccounts:gpu-turnstile",
    }
