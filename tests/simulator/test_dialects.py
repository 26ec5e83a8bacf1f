"""Pods of other systems on a simulated node, by the real webhook and the component's entries."""

import json
import signal
from collections.abc import Iterator
from copy import deepcopy

import pytest

from contract.allocation import decode_allocations
from contract.names import Names
from contract.requests import read_pod_demand
from simulator.client import ApiError
from simulator.cluster import NODE, SimulatedCluster
from simulator.manifests import Json
from simulator.webhooks import set_address
from tests.deploy.kustomize import build_components
from tests.deploy.manifests import containers, environment, find, pod_specs
from tests.foreign_pods import FOREIGN, Foreign

NAMES = Names()
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAMESPACES = "/api/v1/namespaces"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(name="cluster", scope="module")
def _cluster() -> Iterator[SimulatedCluster]:
    objects = build_components("dialects")
    (webhook,) = containers(pod_specs(objects)["Deployment/gpu-turnstile-webhook"])
    accept = environment(webhook)["GPU_TURNSTILE_WEBHOOK_ACCEPT"]
    with SimulatedCluster() as cluster:
        cluster.kill("webhook", number=signal.SIGTERM)
        cluster.start("webhook", "--accept", accept)
        cluster.start_nodes(NODE)
        cluster.wait_for_nodes()
        # The simulated API server ignores matchConditions: by the base's entry for GPU pods it
        # would send all pods of all namespaces.
        configuration = deepcopy(find(objects, "MutatingWebhookConfiguration", "gpu-turnstile"))
        configuration["webhooks"] = [
            each
            for each in configuration["webhooks"]
            if each["name"] == "dialects.gpu-turnstile.io"
        ]
        ca = (cluster.root / "certs" / "ca.crt").read_bytes()
        set_address(configuration, cluster.webhook_url, ca)
        cluster.api.delete(f"{CONFIGURATIONS}/gpu-turnstile")
        cluster.api.create(CONFIGURATIONS, configuration)
        for name, labels in (("ours", {"gpu-turnstile.io/dialects": "true"}), ("theirs", {})):
            cluster.api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        yield cluster


def _pod(name: str, resources: Json, annotations: Json | None = None) -> Json:
    main = {"name": "main", "image": "none", "resources": {"limits": resources}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [main]},
    }


ON_ONE_CARD = [each for each in FOREIGN if each.demand.cards == 1]


@pytest.mark.parametrize("written", ON_ONE_CARD, ids=lambda each: each.name)
def test_a_pod_of_another_system_runs_as_ours(cluster: SimulatedCluster, written: Foreign) -> None:
    path = f"{NAMESPACES}/ours/pods"
    name = written.name
    cluster.api.create(path, _pod(name, written.resources, written.annotations))

    def recorded() -> bool:
        found = cluster.api.get(f"{path}/{name}")
        notes = found["metadata"]["annotations"]
        return found["status"].get("phase") == "Running" and NAMES.gpu_allocation in notes

    cluster.wait(f"the pod of {written.system}", recorded)
    found = cluster.api.get(f"{path}/{name}")
    demand, errors = read_pod_demand(found, NAMES)
    assert ([each.demand for each in demand.containers], errors) == ([written.demand], ())
    notes = found["metadata"]["annotations"]
    (allocation,) = decode_allocations(notes[NAMES.gpu_allocation]).values()
    assert (allocation.cores, len(allocation.cards)) == (written.demand.cores, 1)
    assert json.loads(notes[NAMES.translated_from])["dialect"] == written.system
    assert not written.annotations.keys() & notes.keys()
    assert not set(written.resources) & set(found["spec"]["containers"][0]["resources"]["limits"])


def test_in_a_namespace_without_the_label_a_pod_stays_as_its_author_wrote_it(
    cluster: SimulatedCluster,
) -> None:
    resources = {"nvidia.com/gpu": "1"}
    made = cluster.api.create(f"{NAMESPACES}/theirs/pods", _pod("plain", resources))
    assert made["spec"]["containers"][0]["resources"]["limits"] == resources
    assert not made["metadata"].get("annotations")
    cluster.api.delete(f"{NAMESPACES}/theirs/pods/plain")


def test_without_the_webhook_such_a_pod_is_denied(cluster: SimulatedCluster) -> None:
    """The last one: the webhook stays away."""
    cluster.kill("webhook", number=signal.SIGTERM)
    with pytest.raises(ApiError, match=r"dialects\.gpu-turnstile\.io"):
        cluster.api.create(f"{NAMESPACES}/ours/pods", _pod("late", {"nvidia.com/gpu": "1"}))
