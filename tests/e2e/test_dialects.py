"""The component ``dialects``, installed: pods as authors of other systems write them."""

import json
from collections.abc import Iterator

import pytest

from contract.requests import read_pod_demand
from tests.e2e.cluster import ApiError, Json, KubectlError
from tests.e2e.ground import wait
from tests.e2e.installation import Deploy, Deployed
from tests.foreign_pods import FOREIGN

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LABEL = "gpu-turnstile.io/dialects"


@pytest.fixture(scope="module")
def deployed(deploy: Deploy) -> Iterator[Deployed]:
    with deploy(components=("dialects",)) as deployed:
        yield deployed


def _label(deployed: Deployed, value: str) -> None:
    """Set or remove the label of the tests' namespace, and wait until the API server knows."""
    namespace = deployed.ground.cluster.namespace
    deployed.kubectl.run("label", "namespace", namespace, "--overwrite", value)

    def known() -> bool:
        return _is_translated(deployed, "probe") != value.endswith("-")

    wait("the API server knows the label", known)


def _is_translated(deployed: Deployed, name: str) -> bool:
    made = deployed.ground.cluster.create(
        _pod(deployed, name, {"nvidia.com/gpu": "1"}), dry_run=True
    )
    return deployed.ground.names.translated_from in (made["metadata"].get("annotations") or {})


def _pod(deployed: Deployed, name: str, resources: Json, annotations: Json | None = None) -> Json:
    make = deployed.ground.make
    pod = make.pod(name, [make.idle("main", resources={"limits": resources})])
    pod["metadata"]["annotations"] = dict(annotations or {})
    return pod


def test_a_namespace_without_the_label_keeps_its_pods(deployed: Deployed) -> None:
    assert not _is_translated(deployed, "plain")


def test_pods_of_every_system_run_with_their_parts(deployed: Deployed) -> None:
    ground = deployed.ground
    _label(deployed, f"{LABEL}=true")
    written = {each.name: each for each in FOREIGN}
    pods = ground.run(
        *(_pod(deployed, each.name, each.resources, each.annotations) for each in FOREIGN)
    )
    assert ground.refused(pods) == {}
    for name, pod in pods.items():
        demand, errors = read_pod_demand(pod, ground.names)
        assert ([each.demand for each in demand.containers], errors) == ([written[name].demand], ())
        original = json.loads(pod["metadata"]["annotations"][ground.names.translated_from])
        assert original["dialect"] == written[name].system
    seen = ground.audit("pods of other systems", pods)
    assert len(seen) == len(FOREIGN)
    change = f"{ground.names.translated_from}=" + "{}"
    with pytest.raises(KubectlError, match="only gpu-turnstile may change"):
        deployed.kubectl.run(
            *("annotate", "pod", "hami-1-cards", f"--namespace={ground.cluster.namespace}"),
            *("--overwrite", change),
        )
    ground.clear()


def test_a_workloads_author_is_warned_of_the_translation(deployed: Deployed) -> None:
    _label(deployed, f"{LABEL}=true")
    pod = _pod(deployed, "unused", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1024"})
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
    }
    done = deployed.kubectl.run(
        *("create", f"--namespace={deployed.ground.cluster.namespace}", "--filename=-"),
        "--dry-run=server",
        stdin=json.dumps(deployment),
    )
    assert "translated from hami: vcuda-core 2, vcuda-memory 8, gpu-cards 2" in done.stderr


def test_without_webhooks_a_pod_of_another_system_is_denied(deployed: Deployed) -> None:
    _label(deployed, f"{LABEL}=true")
    deployed.installation.scale_webhook(0)
    try:
        with pytest.raises(ApiError, match=r"dialects\.gpu-turnstile\.io"):
            deployed.ground.cluster.create(
                _pod(deployed, "late", {"nvidia.com/gpu": "1"}), dry_run=True
            )
    finally:
        deployed.installation.scale_webhook(2)
