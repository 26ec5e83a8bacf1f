"""What kustomize makes of deploy/ and of each overlay."""

import os
from collections.abc import Callable
from dataclasses import replace
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
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda each: each or "deploy")


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


def test_every_folder_has_its_test() -> None:
    """What is applied elsewhere than here is a component."""
    assert OVERLAYS == (
        "",
        "overlays/cdi",
        "overlays/cert-manager",
        "overlays/domain",
        "overlays/gpu-manager",
        "overlays/hami-core",
        "overlays/host-driver",
        "overlays/hot-standby",
        "overlays/monitoring",
        "overlays/nvidia-runtime",
        "overlays/try-out",
        "overlays/vcuda",
    )


@every_overlay
@pytest.mark.parametrize("version", [OLDEST, newest()])
def test_everything_built_is_what_kubernetes_expects(overlay: str, version: str) -> None:
    plain = build("") if overlay else []
    for each in build(overlay):
        if each not in plain:
            check(each, version)


def test_deploy_itself_is_the_base() -> None:
    assert _identities(build("")) == _identities(base())


_CERTS = _identities(
    [each for path in (DEPLOY / "base" / "certs").glob("[!k]*.yaml") for each in read_yaml(path)]
)
"""Without the kustomization itself."""


@every_overlay
def test_overlays_keep_what_they_have_no_business_with(overlay: str) -> None:
    gone = _identities(base()) - _identities(build(overlay))
    assert gone == (_CERTS if overlay == "overlays/cert-manager" else set())


@every_overlay
def test_every_variable_of_ours_is_an_option_of_its_program(overlay: str) -> None:
    for spec in pod_specs(build(overlay)).values():
        for container in containers(spec):
            known = variables(program(container))
            for name, value in environment(container).items():
                if not name.startswith("NVIDIA_"):
                    known[name].type.convert(value, known[name], None)


@every_overlay
def test_every_mount_has_its_volume_and_every_volume_its_mount(overlay: str) -> None:
    for spec in pod_specs(build(overlay)).values():
        mounts = {m["name"] for each in containers(spec) for m in each.get("volumeMounts", ())}
        assert mounts == {each["name"] for each in spec.get("volumes", ())}


_KUBELET = {"/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources"}
_NVML = {"/dev", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}
_VCUDA = {"/var/lib/gpu-turnstile", "/sys/fs/cgroup", "/run/containerd"}


@pytest.mark.parametrize(
    ("overlay", "more", "privileged", "host_pid"),
    [
        ("", set[str](), False, False),
        ("overlays/cdi", {"/var/run/cdi", "/etc/cdi"}, False, False),
        ("overlays/cert-manager", set[str](), False, False),
        ("overlays/domain", set[str](), False, False),
        ("overlays/gpu-manager", _NVML | _VCUDA, True, True),
        ("overlays/hami-core", {"/var/lib/gpu-turnstile", "/usr/local/vgpu"}, False, False),
        ("overlays/host-driver", _NVML, True, False),
        ("overlays/hot-standby", set[str](), False, False),
        ("overlays/monitoring", set[str](), False, False),
        ("overlays/nvidia-runtime", set[str](), False, False),
        ("overlays/try-out", set[str](), False, False),
        ("overlays/vcuda", _VCUDA, False, True),
    ],
)
def test_each_overlay_takes_no_more_of_the_host_than_it_needs(
    overlay: str, more: set[str], privileged: bool, host_pid: bool
) -> None:
    spec = _agent(overlay)
    security = containers(spec)[0]["securityContext"]
    assert _paths(spec) == _KUBELET | more
    assert security["privileged"] is privileged
    assert security["allowPrivilegeEscalation"] is privileged
    assert security["readOnlyRootFilesystem"] is True
    assert security.get("capabilities") == (None if privileged else {"drop": ["ALL"]})
    assert spec.get("hostPID", False) is host_pid
    assert "hostNetwork" not in spec


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


def test_vcuda_finds_the_runtimes_socket_in_what_is_mounted() -> None:
    spec = _agent("overlays/vcuda")
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


_WITH_OTHERS = [each for each in COMPONENTS if each not in ("domain", "hot-standby")]


@pytest.mark.parametrize("component", _WITH_OTHERS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_the_standby_is_the_agent_with_any_component_in_any_order(
    component: str, order: str, tmp_path: Path
) -> None:
    chosen = [component, "hot-standby"] if order == "after" else ["hot-standby", component]
    alone = pod_specs(build_folder(write_overlay(tmp_path / "alone", [component])))
    both = pod_specs(build_folder(write_overlay(tmp_path / "both", chosen)))
    standby = both.pop("DaemonSet/gpu-turnstile-agent-standby")
    assert both == alone
    assert standby == alone["DaemonSet/gpu-turnstile-agent"]


@every_overlay
def test_any_overlay_can_have_a_standby_added_to_it(overlay: str, tmp_path: Path) -> None:
    def write(name: str, *components: str) -> Path:
        resource = os.path.relpath(DEPLOY / (overlay or "base"), (tmp_path / name).resolve())
        return write_overlay(tmp_path / name, components, resources=[resource])

    if overlay == "overlays/hot-standby":
        return
    plain = pod_specs(build_folder(write("plain")))
    more = pod_specs(build_folder(write("more", "hot-standby")))
    assert (
        more.pop("DaemonSet/gpu-turnstile-agent-standby") == plain["DaemonSet/gpu-turnstile-agent"]
    )
    assert more == plain


def test_a_patch_of_settings_reaches_the_standby(tmp_path: Path) -> None:
    """By the target that deploy/README.md shows."""
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    pattern = "gpu-turnstile-agent(-standby)?"
    assert f'- target: {{kind: DaemonSet, name: "{pattern}"}}' in readme
    folder = write_overlay(
        tmp_path / "mine",
        ["hot-standby"],
        patches=[
            {
                "target": {"kind": "DaemonSet", "name": pattern},
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


@every_overlay
def test_one_line_sets_the_image(overlay: str, tmp_path: Path) -> None:
    folder = write_overlay(
        tmp_path / "mine",
        resources=[os.path.relpath(DEPLOY / (overlay or "base"), (tmp_path / "mine").resolve())],
        images=[
            {
                "name": "ghcr.io/gpu-turnstile/gpu-turnstile",
                "newName": "registry.example.com/gpu",
                "newTag": "9.9.9",
            }
        ],
    )
    for spec in pod_specs(build_folder(folder)).values():
        for each in containers(spec):
            assert each["image"] == "registry.example.com/gpu:9.9.9"


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


@pytest.mark.parametrize(
    ("overlay", "wanted"),
    [
        ("", None),
        ("overlays/nvidia-runtime", "nvidia"),
        ("overlays/cdi", "nvidia"),
        ("overlays/host-driver", None),
        ("overlays/try-out", None),
    ],
)
def test_only_where_it_is_said_the_agent_needs_a_runtime_class(
    overlay: str, wanted: str | None
) -> None:
    assert _agent(overlay).get("runtimeClassName") == wanted


@pytest.mark.parametrize(
    "pick",
    [lambda _overlay, spec: spec["tolerations"], lambda _overlay, spec: spec["priorityClassName"]],
    ids=["tolerations", "priority"],
)
def test_the_agent_runs_wherever_gpu_pods_do(pick: Callable[[str, Json], object]) -> None:
    first = pick("", _agent(""))
    assert first in ([{"operator": "Exists"}], "system-node-critical")
    assert all(pick(each, _agent(each)) == first for each in OVERLAYS)


def test_kinds_of_operators_come_with_their_component_alone() -> None:
    for overlay in OVERLAYS:
        foreign = {each["kind"] for each in build(overlay)} & CUSTOM
        assert bool(foreign) == (overlay in ("overlays/cert-manager", "overlays/monitoring"))
