"""The extender for the cluster's kube-scheduler, or beside one of ours, and preemption."""

from dataclasses import replace

import pytest
import yaml

from contract.names import Names
from placement.cluster.nominations import CONDITION
from scheduler.__main__ import cli as scheduler
from scheduler.cluster import LONGEST_BINDING
from scheduler.extender import PATIENCE
from simulator.scheduler.configuration import parse_configuration
from tests.deploy.creation_examples import BINDINGS
from tests.deploy.kustomize import build, build_components
from tests.deploy.manifests import (
    DEPLOY,
    Json,
    containers,
    environment,
    find,
    pod_specs,
    read_yaml,
)
from tests.deploy.policies import Update, denials
from tests.deploy.soundness import variables

EXTENDER = DEPLOY / "components" / "scheduler-extender"
(FRAGMENT,) = read_yaml(EXTENDER / "kube-scheduler.yaml")
ACCOUNT = "system:serviceaccount:gpu-turnstile:gpu-turnstile-scheduler"
OWN_ACCOUNT = "system:serviceaccount:gpu-turnstile:gpu-turnstile-kube-scheduler"
OWN = "gpu-turnstile-kube-scheduler"
SERVER = "gpu-turnstile-scheduler.gpu-turnstile.svc"


def _objects(*names: str) -> list[Json]:
    return build_components("scheduler-extender", *names)


def _own() -> list[Json]:
    return build_components("scheduler-own")


def _sidecar() -> Json:
    (found,) = pod_specs(_own())[f"Deployment/{OWN}"]["initContainers"]
    return dict(found)


def _configuration() -> Json:
    data = find(_own(), "ConfigMap", OWN)["data"]
    found: Json = yaml.safe_load(data["kube-scheduler.yaml"])
    return found


def _extender(configuration: Json) -> Json:
    """Its one entry; no field of the file is misspelt."""
    parse_configuration(configuration)
    found: Json
    (found,) = configuration["extenders"]
    return found


@pytest.mark.parametrize("which", ["fragment", "own"])
def test_kube_scheduler_sends_node_names_to_all_verbs_and_never_ignores_the_extender(
    which: str,
) -> None:
    found = _extender(FRAGMENT if which == "fragment" else _configuration())
    verbs = [found[f"{each}Verb"] for each in ("filter", "prioritize", "preempt", "bind")]
    assert verbs == ["filter", "prioritize", "preempt", "bind"]
    # Whole nodes would make kube-scheduler score each as idle (K25).
    assert found["nodeCacheCapable"] is True
    assert found["weight"] == 1
    assert found["ignorable"] is False


def test_the_clusters_own_scheduler_calls_the_extender_for_gpu_pods_only() -> None:
    assert _extender(FRAGMENT)["managedResources"] == [{"name": Names().core}]
    assert parse_configuration(FRAGMENT).names == {"default-scheduler"}


def test_the_clusters_scheduler_trusts_only_a_certificate_of_the_extender() -> None:
    # Not by the host's name, which only the cluster's DNS knows.
    assert _extender(FRAGMENT)["tlsConfig"]["serverName"] == SERVER


def test_the_second_scheduler_calls_the_extender_in_its_own_pod() -> None:
    """Without names, addresses and certificates: there is nothing that could be missing."""
    sidecar, own = _sidecar(), _extender(_configuration())
    (port,) = sidecar["ports"]
    assert own["urlPrefix"] == f"http://127.0.0.1:{port['containerPort']}"
    assert "tlsConfig" not in own
    assert port["containerPort"] == variables(scheduler)["GPU_TURNSTILE_SCHEDULER_PORT"].default
    brought = {
        each["kind"]
        for each in _own()
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "scheduler-own"
    }
    assert not {"Service", "EndpointSlice", "Secret"} & brought
    (container,) = pod_specs(_own())[f"Deployment/{OWN}"]["containers"]
    assert container["name"] == "kube-scheduler"
    # A Binding may wait for its leader, and then for the API server.
    assert int(own["httpTimeout"].removesuffix("s")) > PATIENCE + LONGEST_BINDING


def test_the_extender_beside_it_starts_first_ends_last_and_follows_its_election() -> None:
    sidecar, election = _sidecar(), _configuration()["leaderElection"]
    assert sidecar["restartPolicy"] == "Always"  # so the kubelet orders them
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz"
    given = environment(sidecar)
    lease = given["GPU_TURNSTILE_SCHEDULER_KUBE_SCHEDULER_LEASE"]
    assert lease == election["resourceName"]  # which its role names: tests/rbac
    assert election["leaderElect"] is True
    assert election["resourceNamespace"] == find(_own(), "Role", OWN)["metadata"]["namespace"]
    # kube-scheduler's identity has the host name, which containers of a pod share.
    assert "hostname" not in pod_specs(_own())[f"Deployment/{OWN}"]
    assert "GPU_TURNSTILE_SCHEDULER_IDENTITY" not in given


def test_both_forms_of_the_extender_are_the_same_container() -> None:
    alone = containers(pod_specs(_objects())["Deployment/gpu-turnstile-scheduler"])[0]
    same = ("name", "image", "command", "resources", "securityContext")
    assert {key: alone[key] for key in same} == {key: _sidecar()[key] for key in same}


def test_the_certificate_is_made_for_the_service_and_outlives_configurations() -> None:
    objects = _objects()
    service = find(objects, "Service", "gpu-turnstile-scheduler")["metadata"]
    specs = pod_specs(objects)
    given = environment(containers(specs["Deployment/gpu-turnstile-scheduler-certs"])[0])
    assert f"{service['name']}.{service['namespace']}.svc" == SERVER
    assert given["GPU_TURNSTILE_CERTS_SERVICE"] == service["name"]
    assert given["GPU_TURNSTILE_CERTS_SECRETS_ONLY"] == "true"
    assert given["GPU_TURNSTILE_CERTS_CA_DAYS"] == "3650"
    volumes = specs["Deployment/gpu-turnstile-scheduler"]["volumes"]
    (secret,) = (each["secret"] for each in volumes if "secret" in each)
    assert secret["secretName"] == given["GPU_TURNSTILE_CERTS_TLS_SECRET"]


def test_the_webhook_sets_the_second_scheduler_on_gpu_pods() -> None:
    (name,) = parse_configuration(_configuration()).names
    webhook = containers(pod_specs(_own())["Deployment/gpu-turnstile-webhook"])[0]
    assert environment(webhook)["GPU_TURNSTILE_WEBHOOK_SCHEDULER_NAME"] == name


@pytest.mark.parametrize(
    ("user", "overlay", "may"),
    [
        (ACCOUNT, "overlays/scheduler-extender", True),
        ("system:kube-scheduler", "overlays/scheduler-extender", False),
        ("other-user", "overlays/scheduler-extender", False),
        ("system:kube-scheduler", "", True),
        (ACCOUNT, "", False),
        (OWN_ACCOUNT, "overlays/scheduler-own", True),
        (ACCOUNT, "overlays/scheduler-own", False),
        ("system:kube-scheduler", "overlays/scheduler-own", False),
        (OWN_ACCOUNT, "overlays/scheduler-extender", False),
    ],
)
def test_only_the_installed_extender_sets_cards_in_a_binding(
    user: str, overlay: str, may: bool
) -> None:
    (binding,) = (each for each in BINDINGS if each.title == "a scheduler sets its cards")
    policy = find(build(overlay), "ValidatingAdmissionPolicy", "gpu-turnstile-bindings")
    found = denials(policy, replace(binding.request(), user=user))
    refused = "only a scheduler's Binding may set predicate-gpu-idx-*"
    assert found == ([] if may else [refused])


def test_the_leader_is_found_through_an_endpoint_slice_that_it_writes_itself() -> None:
    objects = _objects()
    service = find(objects, "Service", "gpu-turnstile-scheduler")
    endpoints = find(objects, "EndpointSlice", "gpu-turnstile-scheduler")
    ipv6 = find(objects, "EndpointSlice", "gpu-turnstile-scheduler-ipv6")
    assert endpoints["addressType"] == "IPv4"
    assert ipv6 == endpoints | {
        "metadata": endpoints["metadata"] | {"name": "gpu-turnstile-scheduler-ipv6"},
        "addressType": "IPv6",
    }
    # With a selector, Kubernetes would write slices of its own beside it.
    assert "selector" not in service["spec"]
    labels = endpoints["metadata"]["labels"]
    assert labels["kubernetes.io/service-name"] == service["metadata"]["name"]
    container = containers(pod_specs(objects)["Deployment/gpu-turnstile-scheduler"])[0]
    given, known = environment(container), variables(scheduler)
    name = endpoints["metadata"]["name"]
    assert given["GPU_TURNSTILE_SCHEDULER_ENDPOINT_SLICE"] == name
    (port,) = container["ports"]
    (served,) = endpoints["ports"]
    assert port["containerPort"] == known["GPU_TURNSTILE_SCHEDULER_PORT"].default
    assert service["spec"]["ports"] == [
        {"name": served["name"], "port": 443, "targetPort": served["port"]}
    ]
    assert served["port"] == port["containerPort"]
    namespace = known["GPU_TURNSTILE_SCHEDULER_NAMESPACE"].default
    assert endpoints["metadata"]["namespace"] == namespace


def test_only_the_extender_can_be_connected_to() -> None:
    for objects, opened in ((_objects(), "gpu-turnstile-scheduler"), (_own(), OWN)):
        assert "ingress" in find(objects, "NetworkPolicy", opened)["spec"]
    assert (
        "ingress" not in find(_objects(), "NetworkPolicy", "gpu-turnstile-scheduler-certs")["spec"]
    )


# --- preemption -------------------------------------------------------------------------------

SCHEDULED = {"type": "PodScheduled", "status": "False"}
OURS = {"type": CONDITION, "status": "True"}
POD: Json = {
    "metadata": {"name": "p", "namespace": "team", "labels": {"a": "b"}},
    "spec": {"containers": []},
    "status": {"phase": "Pending", "conditions": [SCHEDULED]},
}


def _rules(objects: list[Json]) -> list[Json]:
    return [
        rule
        for each in objects
        if each["kind"] == "ClusterRole" and "scheduler" in each["metadata"]["name"]
        for rule in each["rules"]
    ]


def test_no_pod_is_evicted_without_the_component() -> None:
    (container,) = containers(pod_specs(_objects())["Deployment/gpu-turnstile-scheduler"])
    assert "GPU_TURNSTILE_SCHEDULER_PREEMPT" not in environment(container)
    resources = {each for rule in _rules(_objects()) for each in rule["resources"]}
    assert resources == {"nodes", "pods", "pods/binding", "pods/status", "podgroups"}


def test_the_extender_with_the_component_evicts_pods_and_may_not_delete_them() -> None:
    objects = _objects("scheduler-extender-preemption")
    (container,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-scheduler"])
    assert environment(container)["GPU_TURNSTILE_SCHEDULER_PREEMPT"] == "on"
    verbs = {
        (each, verb)
        for rule in _rules(objects)
        for each in rule["resources"]
        for verb in rule["verbs"]
    }
    assert ("pods/eviction", "create") in verbs
    assert {verb for each, verb in verbs if each == "pods"} == {"get", "list", "watch"}
    assert {verb for each, verb in verbs if each == "pods/status"} == {"patch"}


def test_beside_a_kube_scheduler_it_needs_only_the_right_to_evict() -> None:
    objects = build_components("scheduler-own", "scheduler-preemption")
    specs = pod_specs(objects)["Deployment/gpu-turnstile-kube-scheduler"]
    (container,) = (each for each in containers(specs) if each["name"] == "scheduler")
    assert environment(container)["GPU_TURNSTILE_SCHEDULER_PREEMPT"] == "on"
    rules = [(rule["resources"], rule["verbs"]) for rule in _rules(objects)]
    assert rules == [(["pods/eviction"], ["create"])]


@pytest.mark.parametrize(
    ("scheduler", "name"),
    [("scheduler-own", "kube-scheduler"), ("scheduler-extender", "scheduler")],
)
def test_with_queues_the_extender_reads_what_the_one_controller_promises(
    scheduler: str, name: str
) -> None:
    component = f"{scheduler.removesuffix('-own')}-queues"
    without, objects = build_components(scheduler), build_components(scheduler, component)
    specs = pod_specs(objects)
    (container,) = (
        each
        for each in containers(specs[f"Deployment/gpu-turnstile-{name}"])
        if each["name"] == "scheduler"
    )
    assert environment(container)["GPU_TURNSTILE_SCHEDULER_WORKLOADS"] == "on"
    assert specs["Deployment/gpu-turnstile-gates"]["serviceAccountName"] == "gpu-turnstile-gates"
    bound = {
        each["roleRef"]["name"]: each["subjects"][0]["name"]
        for each in objects
        if each["kind"] == "ClusterRoleBinding" and each not in without
    }
    assert bound == {
        "gpu-turnstile-gates": "gpu-turnstile-gates",
        "gpu-turnstile-scheduler-workloads": f"gpu-turnstile-{name}",
    }


CONDITIONS = "the extender may change only the condition gpu-turnstile.io/CardsNominated of a pod"
STATUS = "the extender may change only nominatedNodeName and its condition in the status of a pod"
METADATA = "the extender may change neither annotations nor labels of a pod"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"status": {"nominatedNodeName": "n1", "conditions": [SCHEDULED, OURS]}}, []),
        ({"status": {"conditions": [OURS]}}, [CONDITIONS]),
        (
            {"status": {"conditions": [SCHEDULED, {"type": "Ready", "status": "True"}]}},
            [CONDITIONS],
        ),
        ({"status": {"phase": "Failed", "conditions": [SCHEDULED]}}, [STATUS]),
        ({"status": {"podIP": "10.0.0.1"}}, [STATUS]),
        ({"status": {"containerStatuses": []}}, [STATUS]),
        ({"metadata": {"annotations": {"tencent.com/gpu-allocation": "x"}}}, [METADATA]),
        ({"metadata": {"labels": {"a": "c"}}}, [METADATA]),
    ],
)
def test_the_extender_may_nominate_a_pod_and_change_nothing_else(
    change: Json, found: list[str]
) -> None:
    policy = find(
        _objects("scheduler-extender-preemption"),
        "ValidatingAdmissionPolicy",
        "gpu-turnstile-nominations",
    )
    changed = {**POD, **{key: {**POD[key], **value} for key, value in change.items()}}
    assert denials(policy, Update(ACCOUNT, POD, changed, "status")) == found
    assert denials(policy, Update("other-user", POD, changed, "status")) == []
