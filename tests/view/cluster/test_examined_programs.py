"""What the doctor reads of our programs: pods, their metrics, and why they are not ready."""

from datetime import UTC, datetime
from typing import Any

import pytest

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from tests.view import scenes
from tests.view.cluster.conftest import (
    AGENT_METRICS,
    FAILED,
    NODE_PODS,
    OWN_LEASE,
    SYSTEM_PODS,
    pod,
    read,
    run,
)
from tests.view.cluster.fake_api import FakeApi
from view.model.doctor.facts import Level, UnreadSource


def test_the_extender_in_the_pod_of_a_kube_scheduler_is_read(api: FakeApi) -> None:
    own = pod("gpu-turnstile", "k", "kube-scheduler", 10259)
    (container,) = own["spec"]["containers"]
    container |= {"image": "kube-scheduler:v1.36.1"}
    container["ports"][0]["name"] = "kube-scheduler"
    port = {"name": "http", "containerPort": 8444}
    own["spec"]["initContainers"] = [{"name": "scheduler", "image": "image:1", "ports": [port]}]
    api.responses[SYSTEM_PODS].append(own)
    api.responses[f"{SYSTEM_PODS}/k%3A8444/proxy/metrics"] = (
        'gpu_turnstile_scheduler_request_duration_seconds_count{verb="filter"} 3\n'
    )
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "k_0", "leaseDurationSeconds": 15, "renewTime": renewed}
    api.responses[OWN_LEASE] = {"spec": spec}
    found = {each.check: each.text for each in run(api)}
    assert found["scheduler-own"] == "1 of 1 pods are ready"
    assert found["extender-lease"].startswith("k_0 is the leader, last renewal ")
    assert found["extender-asked"] == "schedulers called it 3 times"
    assert not {"scheduler-extender", "extender-certificate"} & found.keys()


def test_a_pod_without_an_address_gets_no_request(api: FakeApi) -> None:
    """The API server would respond ``address not allowed``, as if a firewall were the cause."""
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {"phase": "Pending"}
    api.responses[SYSTEM_PODS] = [webhook]
    (found,) = run(api, "webhook-certificate")
    assert (found.level, found.text) == ("unknown", "w: it has no IP address yet")


def test_an_agent_that_does_not_respond_is_unknown_on_its_node_alone(api: FakeApi) -> None:
    api.responses[AGENT_METRICS] = Unavailable("no route")
    facts = read(api)
    assert facts.agents == {"n1": UnreadSource("no route")}
    assert not isinstance(facts.proxies["n1"], UnreadSource)


def test_of_two_agents_on_a_node_the_one_that_responds_counts(api: FakeApi) -> None:
    api.responses[NODE_PODS] += [pod("gpu-turnstile-node", "agent-2-ending", "agent", 9440)]
    api.responses[AGENT_METRICS.replace("agent-1", "agent-2-ending")] = Unavailable("it is ending")
    assert not isinstance(read(api).agents["n1"], UnreadSource)


def test_an_agent_that_is_not_ready_does_not_count_for_its_node(api: FakeApi) -> None:
    """It would claim to enforce what the agent that serves does not."""
    pods = api.responses[NODE_PODS]
    new = pod("gpu-turnstile-node", "agent-0", "agent", 9440)
    new["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    pods.insert(0, new)
    api.responses[AGENT_METRICS.replace("agent-1", "agent-0")] = api.responses[AGENT_METRICS]
    api.responses[AGENT_METRICS] = api.responses[AGENT_METRICS].replace("vcuda", "none")
    found = [each for each in run(api) if each.level is Level.ERROR and each.nodes]
    assert [(each.check, each.nodes) for each in found] == [
        ("agents-rollout", ("n1",)),
        ("enforcement", ("n1",)),
    ]
    assert found[1].text == "the agent's enforcement is none, its DaemonSet sets vcuda"


def test_an_agent_that_is_not_created_has_the_reason_of_its_newest_warning(api: FakeApi) -> None:
    new = pod("gpu-turnstile-node", "agent-2", "agent", 9440)
    new["metadata"] |= {"uid": "u2", "creationTimestamp": "2026-01-01T00:00:01Z"}
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    new["status"] = {"containerStatuses": [{"name": "agent", "state": waiting}]}
    api.responses[NODE_PODS].append(new)

    def text() -> str:
        (found,) = run(api, "agents-rollout")
        assert (found.level, found.nodes) == ("error", ("n1",))
        return found.text.partition("still runs: ")[2]

    events = "/api/v1/namespaces/gpu-turnstile-node/events"
    api.responses[events] = Rejected(403, "events is forbidden")
    assert text() == "agent: ContainerCreating"
    other = {"kind": "Pod", "metadata": {"name": "other", "uid": "u3"}}
    found = [
        scenes.event(
            new | {"kind": "Pod"}, "a", "hostPath type check failed: /x", "k", at="00:02:00"
        ),
        scenes.event(new | {"kind": "Pod"}, "b", "an older one", "k", at="00:01:00"),
        scenes.event(other, "c", "of another pod", "k", at="00:03:00"),
    ]
    for each in found:
        each["metadata"]["uid"] = each["reason"]
    api.responses[events] = found
    assert text() == "agent: ContainerCreating: hostPath type check failed: /x"


def test_a_pod_is_reported_as_waiting_for_its_node(api: FakeApi) -> None:
    """A DaemonSet's pod names its node by an affinity, until the scheduler has bound it."""
    agent = pod("gpu-turnstile-node", "agent-1", "agent", 9440)
    del agent["spec"]["nodeName"]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    agent["spec"]["affinity"] = {"nodeAffinity": affinity}
    why = "0/1 nodes are available: 1 Insufficient memory."
    agent["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": why}]}
    api.responses[NODE_PODS][0] = agent
    (found,) = run(api, "agents")
    assert (found.level, found.nodes, found.text) == ("error", ("n1",), f"not ready: {why}")
    assert found.run.endswith("get events --field-selector reason=FailedScheduling")


def waits(reason: str, message: str = "", before: object = None) -> dict[str, Any]:
    """The status of a container that waits, and how it ended before."""
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return state | ({"lastState": {"terminated": before}} if before else {})


BACK_OFF = "CrashLoopBackOff"
ENDED = {"state": {"terminated": FAILED}}
ENDED_TWICE = {**ENDED, "lastState": {"terminated": FAILED}, "restartCount": 1}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (waits(BACK_OFF, "back-off", {"exitCode": 2}), f"{BACK_OFF}, last exit code 2"),
        (
            waits(BACK_OFF, "back-off", {"exitCode": 128, "message": "no such device"}),
            f"{BACK_OFF}, last exit code 128: no such device",
        ),
        (waits("CreateContainerError", "not shared"), "CreateContainerError: not shared"),
        (waits("RunContainerError", f"of {'7e' * 32}"), "RunContainerError: of ..."),
        (waits("ContainerCreating"), "ContainerCreating"),
        (ENDED, "Error: no port"),
        (ENDED_TWICE, "Error, last exit code 1: no port"),
    ],
)
def test_the_reason_of_an_unready_pod_is_that_of_its_status(
    api: FakeApi, status: dict[str, Any], reason: str
) -> None:
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "webhook", **status}],
    }
    api.responses[SYSTEM_PODS] = [webhook]
    (found,) = run(api, "webhook-replicas")
    assert found.text == f"0 of 1 pods are ready: webhook: {reason}"
