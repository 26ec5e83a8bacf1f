"""Rules for all objects that can be applied: the base, and each overlay."""

import click

from agent.__main__ import main as agent
from agent.enforcement.mps.__main__ import main as mps
from certs.__main__ import cli as certs
from claims.__main__ import cli as claims
from contract.names import Names
from contract.stamps import OrderStamp
from gates.__main__ import cli as gates
from proxy.__main__ import main as proxy
from scheduler.__main__ import cli as scheduler
from tests.deploy.manifests import (
    NOT_OURS,
    VERSION,
    Json,
    containers,
    environment,
    find,
    pod_specs,
    selects,
)
from view.__main__ import cli as view
from webhook.__main__ import cli as webhook
from webhook.admission.routes import make_routes

ROUTES = make_routes(names=Names(), stamp=lambda: OrderStamp(1, "w", 0))
PROGRAMS: dict[str, click.Command] = {
    "agent": agent,
    "agent.enforcement.mps": mps,
    "certs": certs,
    "claims": claims,
    "gates": gates,
    "proxy": proxy,
    "scheduler": scheduler,
    "view": view,
    "webhook": webhook,
}
_OTHERS = {"kube-scheduler": "registry.k8s.io/kube-scheduler:"}
_HTTPS = ("kube-scheduler", "webhook")
_CLUSTER_WIDE = (
    *("Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)


def variables(command: click.Command) -> dict[str, click.Parameter]:
    """Return the environment variables that a command reads."""
    prefix = command.context_settings.get("auto_envvar_prefix")
    found: dict[str, click.Parameter] = {}
    for each in command.params:
        named = [each.envvar] if isinstance(each.envvar, str) else list(each.envvar or ())
        if not named and prefix and each.name:
            named = [f"{prefix}_{each.name.upper()}"]
        found |= dict.fromkeys(named, each)
    return found


def check_objects(
    objects: list[Json], *, privileged_agent: bool = False, privileged_mps: bool = False
) -> None:
    """Assert that objects fit each other and our programs, with no more rights than needed."""
    for spec in pod_specs(objects).values():
        mounts = {m["name"] for each in containers(spec) for m in each.get("volumeMounts", ())}
        assert mounts == {each["name"] for each in spec.get("volumes", ())}
        for container in containers(spec):
            _check_program(container)
            _check_probes(container)
            privileged = {"agent": privileged_agent, "mps": privileged_mps}
            _check_security(spec, container, privileged.get(container["name"], False))
        account = find(objects, "ServiceAccount", spec["serviceAccountName"])["metadata"]
        assert account["namespace"]
    _check_selectors(objects)
    _check_opened(objects)
    quotas = {
        each["metadata"]["namespace"]: str(each["spec"]["scopeSelector"])
        for each in objects
        if each["kind"] == "ResourceQuota"
    }
    for each in objects:
        metadata = each["metadata"]
        assert ("namespace" in metadata) == (each["kind"] not in _CLUSTER_WIDE), metadata["name"]
        if each["kind"] in ("Deployment", "DaemonSet"):
            priority = each["spec"]["template"]["spec"].get("priorityClassName")
            assert priority is None or priority in quotas[metadata["namespace"]]
        for entry in each.get("webhooks", ()):
            service = entry["clientConfig"]["service"]
            found = find(objects, "Service", service["name"])
            assert found["metadata"]["namespace"] == service["namespace"]
            assert service.get("port", 443) in [p["port"] for p in found["spec"]["ports"]]
            assert service["path"] in ROUTES


def _check_program(container: Json) -> None:
    """Every variable of ours is an option of the program, can be read, and none is missing."""
    if container["name"] in _OTHERS:
        assert container["image"].startswith(_OTHERS[container["name"]])
        return
    if container["command"][0] == "sh":  # test_overlays.py runs it
        assert container["image"] == f"ghcr.io/gpu-turnstile/gpu-turnstile:{VERSION}"
        return
    python, dash_m, name, *subcommands = container["command"]
    assert (python, dash_m) == ("python", "-m")
    program = PROGRAMS[name.removesuffix(".supervisor")]  # which passes its arguments on
    for each in subcommands:
        assert isinstance(program, click.Group)
        program = program.commands[each]
    known = variables(program)
    names = {each["name"] for each in container.get("env", ())}
    assert {each for each in names if not each.startswith(NOT_OURS)} <= known.keys()
    assert {name for name, option in known.items() if option.required} <= names
    assert container["name"] != "agent" or "NODE_NAME" in names
    for name, value in environment(container).items():
        assert value != "", f"{name}: kubectl apply would find an empty value changed each time"
        if name in known:
            known[name].type.convert(value, known[name], None)
    for port in container.get("ports", ()):
        (name,) = (each for each in known if each.endswith("_PORT"))
        listens = environment(container).get(name, known[name].default)
        assert str(port["containerPort"]) == str(listens), name
    image = "gpu-turnstile-proxy" if container["name"] == "proxy" else "gpu-turnstile"
    assert container["image"] == f"ghcr.io/gpu-turnstile/{image}:{VERSION}"


def _check_probes(container: Json) -> None:
    """Whatever has a port is probed, at ports and paths that there are."""
    ports = {each["name"] for each in container.get("ports", ())}
    probes = [each["httpGet"] for key, each in container.items() if key.endswith("Probe")]
    assert bool(probes) == bool(ports)
    for probe in probes:
        assert probe["port"] in ports
        assert probe["path"] in ("/healthz", "/readyz")
        tls = container["name"] in _HTTPS or "GPU_TURNSTILE_SCHEDULER_CERT" in environment(
            container
        )
        assert (probe.get("scheme") == "HTTPS") == tls


def _check_security(spec: Json, container: Json, privileged: bool) -> None:
    resources, security = container["resources"], container["securityContext"]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert resources["limits"].keys() == {"memory"}
    assert security["allowPrivilegeEscalation"] is privileged
    assert security.get("privileged", False) is privileged
    assert security["readOnlyRootFilesystem"] is True
    assert security.get("capabilities") == (None if privileged else {"drop": ["ALL"]})
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostIPC" not in spec
    assert "hostNetwork" not in spec or container["name"] == "webhook"
    if container["name"] not in ("agent", "driver", "mps", "proxy"):
        user = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532}
        assert user.items() <= spec["securityContext"].items()
        kinds = {"configMap", "secret", "emptyDir"}
        assert all(each.keys() & kinds for each in spec.get("volumes", ()))


def _check_selectors(objects: list[Json]) -> None:
    """Whatever selects pods selects some that there are, and a workload its own."""
    templates = []
    for each in objects:
        spec = each.get("spec") or {}
        if each["kind"] in ("DaemonSet", "Deployment"):
            own = spec["template"]["metadata"]["labels"]
            templates.append(own)
            spread = spec["template"]["spec"].get("topologySpreadConstraints", ())
            for selector in (spec.get("selector", {}), *(one["labelSelector"] for one in spread)):
                assert selects(selector, own), each["metadata"]
    for each in objects:
        selector = (each.get("spec") or {}).get("selector")
        if each["kind"] == "NetworkPolicy":
            selector = each["spec"]["podSelector"]
        if selector and each["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            wanted = {"matchLabels": selector} if each["kind"] == "Service" else selector
            assert any(selects(wanted, labels) for labels in templates), each["metadata"]


def _check_opened(objects: list[Json]) -> None:
    """A NetworkPolicy opens the ports of its pods to all, or none."""
    workloads = [each["spec"]["template"] for each in objects if "template" in each.get("spec", ())]
    for each in objects:
        if each["kind"] == "NetworkPolicy" and (selector := each["spec"]["podSelector"]):
            pods = [pod for pod in workloads if selects(selector, pod["metadata"]["labels"])]
            ports = {
                port["containerPort"]
                for pod in pods
                for container in containers(pod["spec"])
                if container["name"] not in _OTHERS
                for port in container.get("ports", ())
            }
            rules = each["spec"].get("ingress", ())
            assert rules in ((), [{"ports": [{"protocol": "TCP", "port": p} for p in ports]}])
