"""deploy/examples/kueue: its objects name each other, our resources, and the agent's label."""

from collections.abc import Sequence

from contract.names import Names
from contract.text import to_label
from tests.deploy.manifests import DEPLOY, Json, read_yaml
from tests.webhook.admission.building import decide

NAMES = Names()
FOLDER = DEPLOY / "examples/kueue"
QUEUES = read_yaml(FOLDER / "queues.yaml")
WORKLOADS = read_yaml(FOLDER / "workloads.yaml")
MODELS = [flavor["spec"]["nodeLabels"] for flavor in QUEUES if flavor["kind"] == "ResourceFlavor"]


def _all(kind: str) -> dict[str, Json]:
    """Give the objects of a kind by namespace and name."""
    return {
        "/".join(each["metadata"].get(key, "") for key in ("namespace", "name")): each
        for each in QUEUES
        if each["kind"] == kind
    }


def _pods() -> Sequence[tuple[Json, Json]]:
    """Give each workload with its pod."""
    return [(each, each["spec"].get("template", each)) for each in WORKLOADS]


def test_flavors_are_models_as_the_agent_writes_them() -> None:
    for labels in MODELS:
        ((key, model),) = labels.items()
        assert (key, to_label(model)) == (NAMES.gpu_model, model)


def test_quotas_are_whole_cards_of_our_resources() -> None:
    for queue in _all("ClusterQueue").values():
        (group,) = queue["spec"]["resourceGroups"]
        assert group["coveredResources"] == [NAMES.core, NAMES.memory]
        assert {f"/{flavor['name']}" for flavor in group["flavors"]} == {*_all("ResourceFlavor")}
        for flavor in group["flavors"]:
            cores, memory = (each["nominalQuota"] for each in flavor["resources"])
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
            assert cores % 100 == memory % (cores // 100) == 0


def test_workloads_are_in_a_queue_and_their_pods_pass_the_webhook() -> None:
    queues = {key: f"/{each['spec']['clusterQueue']}" for key, each in _all("LocalQueue").items()}
    assert {*queues.values()} == {*_all("ClusterQueue")}
    for workload, pod in _pods():
        metadata = workload["metadata"]
        queue = metadata["labels"]["kueue.x-k8s.io/queue-name"]
        assert f"{metadata['namespace']}/{queue}" in queues
        assert pod["spec"].get("nodeSelector", MODELS[0]) in MODELS
        decision = decide({"metadata": {}, **pod})
        assert (decision.label, decision.warnings) == ("patched", ())
