"""The doctor reads a real HTTP server's answers; what is refused or broken is unknown."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from common.apiserver.client import Client
from contract.names import Names
from simulator.api.faults import Fault
from simulator.api.server import ApiServer, kubeconfig_for
from view.cluster.examination import examine
from view.model.doctor.facts import Hook, Level, Owned, Trial, Unread
from view.terminal.doctor import judge

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-turnstile/leases/gpu-turnstile-scheduler"
AGENT_METRICS = "/api/v1/namespaces/gpu-turnstile-node/pods/agent-1:9440/proxy/metrics"
DAEMONSETS = "/apis/apps/v1/namespaces/gpu-turnstile-node/daemonsets"
CARDS = {
    "memoryBlock": 1 << 28,
    "cards": [
        {
            "uuid": "GPU-0",
            "index": 0,
            "model": "A100",
            "memory": 1 << 30,
            "numa": None,
            "health": "Healthy",
            "reason": "",
            "freeCores": 50,
            "freeBlocks": 2,
        }
    ],
    "links": [],
}


def pod(namespace: str, name: str, component: str, port: int) -> dict[str, Any]:
    port_name = "https" if port == 8443 else "http"
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {"app.kubernetes.io/name": f"gpu-turnstile-{component}"},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [
                {
                    "name": component,
                    "image": "image:1",
                    "ports": [{"name": port_name, "containerPort": port}],
                }
            ],
        },
        "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def daemonset(component: str, selector: dict[str, str]) -> dict[str, Any]:
    env = [{"name": "GPU_TURNSTILE_ENFORCEMENT", "value": "vcuda"}]
    spec = {"nodeSelector": selector, "containers": [{"env": env}]}
    name = f"gpu-turnstile-{component}"
    return {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


def cluster() -> dict[str, Any]:
    """Answers by path: an object, a list of items, text, or a status with its message."""
    node = {
        "metadata": {
            "name": "n1",
            "labels": {"kubernetes.io/os": "linux"},
            "annotations": {"tencent.com/gpu-cards": json.dumps(CARDS)},
        },
        "status": {
            "allocatable": {
                "cpu": "3900m",
                "tencent.com/vcuda-core": "100",
                "tencent.com/vcuda-memory": "4",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    allocation = {
        "main": {"cards": ["GPU-0"], "cores": 50, "memoryBlocks": 2, "evidence": "ticket"}
    }
    share = {
        "metadata": {
            "namespace": "default",
            "name": "share",
            "annotations": {"tencent.com/gpu-allocation": json.dumps(allocation)},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }
    hook = {"name": "pods.gpu-turnstile.io", "clientConfig": {"caBundle": "QQ=="}}
    held = 'namespace="default",pod="share",container="main",card="GPU-0"'
    return {
        "/version": {"gitVersion": "v1.36.2"},
        "/api/v1/nodes": [node],
        "/api/v1/pods": [share],
        "/api/v1/namespaces/gpu-turnstile/pods": [pod("gpu-turnstile", "w", "webhook", 8443)],
        "/api/v1/namespaces/gpu-turnstile-node/pods": [
            pod("gpu-turnstile-node", "agent-1", "agent", 9440),
            pod("gpu-turnstile-node", "proxy-1", "proxy", 9441),
        ],
        "/api/v1/namespaces/gpu-turnstile/pods/https:w:8443/proxy/metrics": (
            "gpu_turnstile_webhook_certificate_expiry_timestamp_seconds 4e9\n"
        ),
        AGENT_METRICS: (
            "gpu_turnstile_agent_registered 1\n"
            'gpu_turnstile_agent_cards{state="served"} 1\n'
            f"gpu_turnstile_agent_container_cores_held{{{held}}} 50\n"
            "python_info 1\n"
        ),
        "/api/v1/namespaces/gpu-turnstile-node/pods/proxy-1:9441/proxy/metrics": (
            'gpu_turnstile_proxy_given_up{resource="r"} 0\n'
        ),
        "POST /api/v1/namespaces/team/pods": {
            "metadata": {"annotations": {"tencent.com/predicate-time": "1"}}
        },
        f"{ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile": {"webhooks": [hook]},
        f"{ADMISSION}/validatingadmissionpolicies": [
            {"metadata": {"name": "gpu-turnstile-stamps"}}
        ],
        f"{ADMISSION}/validatingadmissionpolicybindings": [
            {"spec": {"policyName": "gpu-turnstile-stamps"}}
        ],
        LEASE: (404, "not found"),
        DAEMONSETS: [
            daemonset("agent", {"kubernetes.io/os": "linux"}),
            daemonset("proxy", {}),
        ],
    }


class Served(dict[str, Any]):
    """A server's answers, and a client of it."""

    def __init__(self, server: ApiServer, kubeconfig: Path) -> None:
        super().__init__(cluster())
        self._server = server
        self._client = Client(kubeconfig, user_agent="test")

    @property
    def client(self) -> Client:
        """A client of a server that gives these answers."""
        self._server.mend()
        for path, answer in self.items():
            asked = re.escape(path).replace("POST\\ ", "create ")
            self._server.fail(_answering(answer), rf"(get |list )?{asked}")
        self._server.fail(_answering([]), "(get|list) .*")
        return self._client


def _answering(answer: Any) -> Fault:
    status = 200
    if isinstance(answer, tuple):
        status, message = answer
        answer = {"kind": "Status", "message": message}
    if isinstance(answer, list):
        answer = {"metadata": {"resourceVersion": "1"}, "items": answer}
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return Fault(status, text.encode())


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    kubeconfig = tmp_path / "kubeconfig"
    with ApiServer() as server:
        kubeconfig.write_text(kubeconfig_for(server.url))
        yield Served(server, kubeconfig)
        for each in server.requests:
            assert each.verb != "create" or each.query == "dryRun=All", "a pod would be created"


def test_what_is_read_of_a_cluster_is_judged(api: Served) -> None:
    facts = examine(api.client, Names(), "team")
    assert facts.trial == Trial(stamped=True)
    assert facts.mutating == [Hook("pods.gpu-turnstile.io", "Fail", trusts=True)]
    bad = {each.check: each.text for each in judge(facts) if each.level is not Level.OK}
    assert list(bad) == ["policies"]  # all but one are missing in this cluster
    assert judge(facts)[-2].text == "of 1 container, all hold what their annotation says"


def test_one_node_alone_can_be_looked_at(api: Served) -> None:
    facts = examine(api.client, Names(), "team", "n2")
    assert (dict(facts.agents), dict(facts.proxies)) == ({}, {})


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/version", "version"),
        ("/api/v1/nodes", "nodes"),
        ("/api/v1/pods", "held"),
        ("/api/v1/namespaces/gpu-turnstile/pods", "programs"),
        (f"{ADMISSION}/mutatingwebhookconfigurations/gpu-turnstile", "mutating"),
        (f"{ADMISSION}/validatingadmissionpolicies", "policies"),
        (LEASE, "lease"),
        (DAEMONSETS, "daemonsets"),
        (DAEMONSETS, "enforcement"),
        ("/apis/policy/v1/poddisruptionbudgets", "owned"),
    ],
)
def test_what_is_forbidden_is_told_in_the_servers_words(api: Served, path: str, part: str) -> None:
    words = 'is forbidden: User "u" cannot list'
    api[path] = (403, words)
    assert getattr(examine(api.client, Names(), "team"), part) == Unread(words)


@pytest.mark.parametrize(
    ("status", "words", "expected"),
    [
        (
            403,
            'pods is forbidden: User "u" cannot create resource "pods"',
            Unread('pods is forbidden: User "u" cannot create resource "pods"'),
        ),
        (403, "exceeded quota: gpus", Trial(stamped=False, refused="exceeded quota: gpus")),
        (
            500,
            'failed calling webhook "pods.gpu-turnstile.io": refused',
            Trial(
                stamped=False,
                refused='API server: 500 failed calling webhook "pods.gpu-turnstile.io": refused',
            ),
        ),
        (503, "away", Unread("API server: 503 away")),
    ],
)
def test_a_pod_that_cannot_be_tried_says_why(
    api: Served, status: int, words: str, expected: object
) -> None:
    api["POST /api/v1/namespaces/team/pods"] = (status, words)
    assert examine(api.client, Names(), "team").trial == expected


def test_without_daemonsets_nodes_are_chosen_by_the_labels_of_the_base(api: Served) -> None:
    api[DAEMONSETS] = []
    (node,) = api["/api/v1/nodes"]
    node["metadata"]["labels"]["gpu-turnstile.io/gpus"] = "true"
    facts = examine(api.client, Names(), "team")
    assert facts.daemonsets == frozenset()
    assert facts.enforcement == Unread("there is no DaemonSet gpu-turnstile-agent, which says it")
    assert not isinstance(facts.nodes, Unread)
    assert [each.chosen for each in facts.nodes] == [{"gpu-turnstile-agent", "gpu-turnstile-proxy"}]


def test_a_pod_without_an_address_is_not_asked(api: Served) -> None:
    """The API server would say ``address not allowed``, which sends people after a firewall."""
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {"phase": "Pending"}
    api["/api/v1/namespaces/gpu-turnstile/pods"] = [webhook]
    found = judge(examine(api.client, Names(), "team"))
    assert [(each.level, each.text) for each in found if each.check == "webhook-certificate"] == [
        ("unknown", "w: it has no address yet")
    ]


def test_an_agent_that_does_not_answer_is_unknown_on_its_node_alone(api: Served) -> None:
    api[AGENT_METRICS] = (503, "no route")
    facts = examine(api.client, Names(), "team")
    assert facts.agents == {"n1": Unread("API server: 503 no route")}
    assert not isinstance(facts.proxies["n1"], Unread)


def test_an_answer_of_another_form_is_unknown(api: Served) -> None:
    api["/version"] = {"major": "1"}
    assert examine(api.client, Names(), "team").version == Unread(
        "the API server answered with something else: KeyError('gitVersion')"
    )


def test_a_pod_that_waits_for_its_node_is_told_of_that_node(api: Served) -> None:
    """A DaemonSet's pod names its node by an affinity, until the scheduler has bound it."""
    agent = pod("gpu-turnstile-node", "agent-1", "agent", 9440)
    del agent["spec"]["nodeName"]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    agent["spec"]["affinity"] = {"nodeAffinity": affinity}
    why = "0/1 nodes are available: 1 Insufficient memory."
    agent["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": why}]}
    here = "/api/v1/namespaces/gpu-turnstile-node/pods"
    api[here] = [agent, api[here][1]]
    (found,) = [e for e in judge(examine(api.client, Names(), "team")) if e.check == "agents"]
    assert (found.level, found.nodes, found.text) == ("error", ("n1",), f"not ready: {why}")
    assert found.run.endswith("get events --field-selector reason=FailedScheduling")


def test_it_is_read_which_objects_helm_made_and_since_when_a_pod_is_ready(api: Served) -> None:
    notes = {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": "team"}
    labels = {"app.kubernetes.io/component": "view"}
    one = {"metadata": {"name": "a", "labels": labels, "annotations": notes}}
    api["/apis/apps/v1/deployments"] = [one, {"metadata": {"name": "b"}}]
    agent, _proxy = api["/api/v1/namespaces/gpu-turnstile-node/pods"]
    (ready,) = agent["status"]["conditions"]
    ready["lastTransitionTime"] = "2026-01-01T00:00:01Z"
    facts = examine(api.client, Names(), "team")
    assert facts.owned == [
        Owned("Deployment", "", "a", "view", ("gpus", "team")),
        Owned("Deployment", "", "b", "", None),
    ]
    assert not isinstance(facts.programs, Unread)
    assert [each.since for each in facts.programs if each.name == "agent-1"] == [
        datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                "lastState": {"terminated": {"exitCode": 2}},
            },
            "webhook: CrashLoopBackOff, last exit code 2",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                "lastState": {"terminated": {"exitCode": 128, "message": "no such device"}},
            },
            "webhook: CrashLoopBackOff, last exit code 128: no such device",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerError", "message": "not shared"}}},
            "webhook: CreateContainerError: not shared",
        ),
        (
            {"state": {"waiting": {"reason": "RunContainerError", "message": f"of {'7e' * 32}"}}},
            "webhook: RunContainerError: of ...",
        ),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, "webhook: ContainerCreating"),
    ],
)
def test_why_a_pod_of_ours_is_not_ready_is_what_its_status_says(
    api: Served, status: dict[str, Any], words: str
) -> None:
    webhook = pod("gpu-turnstile", "w", "webhook", 8443)
    webhook["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "webhook", **status}],
    }
    api["/api/v1/namespaces/gpu-turnstile/pods"] = [webhook]
    facts = examine(api.client, Names(), "team")
    assert [each.text for each in judge(facts) if each.check == "webhook-replicas"] == [
        f"0 of 1 pods are ready: {words}"
    ]
