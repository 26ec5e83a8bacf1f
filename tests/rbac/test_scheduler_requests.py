"""The scheduler extender may do what it asks for, and nothing else.

One replica with the settings of the Deployment in deploy/ takes the Lease, writes itself into the
EndpointSlice, binds pods that it follows and one that it does not, and gives the Lease back.
"""

import ast
import asyncio
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from common.serving.tls import Files
from scheduler import cluster
from scheduler.extender import Extender
from scheduler.metrics import Metrics
from scheduler.settings import Settings
from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ServerSettings
from simulator.client import ApiClient
from tests.placement.cluster.builders import NAMES, make_node, make_pod
from tests.rbac.agent_life import Methods
from tests.rbac.comparison import rights, too_little, too_much
from tests.rbac.manifests import DEPLOY, containers, read
from tests.rbac.recording import as_request
from tests.rbac.rules import Request
from tests.simulator.api_helpers import eventually

_NAMESPACE = "gpu-turnstile"
_TEAMS = ("team-a", "team-b")


@dataclass(frozen=True)
class Heard:
    """What a replica asked for, and which methods of its client it called."""

    requests: frozenset[Request]
    methods: frozenset[str]
    user_agents: frozenset[str]


def client_methods() -> set[str]:
    """Find the methods of the extender's client that make a request."""
    (client,) = (
        node
        for node in ast.parse(inspect.getsource(cluster)).body
        if isinstance(node, ast.ClassDef) and node.name == "Cluster"
    )
    return {
        method.name
        for method in client.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and {"call", "list", "watch"}
        & {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
    }


def _settings(kubeconfig: Path) -> Settings:
    """As the Deployment has them, where they name objects."""
    (container,) = containers(read(DEPLOY), "scheduler")
    given = {each["name"]: each.get("value", "") for each in container["env"]}
    return Settings(
        "127.0.0.1",
        8444,
        Files(Path("unused"), Path("unused")),
        NAMES,
        kubeconfig=kubeconfig,
        namespace=_NAMESPACE,
        endpoint_slice=given["GPU_TURNSTILE_SCHEDULER_ENDPOINT_SLICE"],
        address="10.0.0.1",
    )


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    methods = Methods()
    kubeconfig = tmp_path_factory.mktemp("scheduler") / "kubeconfig"
    with (
        pytest.MonkeyPatch.context() as patch,
        ApiServer(ServerSettings(bookmark_s=0.1)) as server,
        ApiClient(server.url) as admin,
    ):
        kubeconfig.write_text(kubeconfig_for(server.url))
        methods.watch(patch, cluster.Cluster, client_methods())
        for name in (_NAMESPACE, *_TEAMS):
            server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        server.apply(*(each.body for each in read(DEPLOY) if each.kind == "EndpointSlice"))
        server.apply(make_node("n1"))
        asyncio.run(_live(Extender(_settings(kubeconfig), Metrics()), admin))
        yield Heard(
            frozenset(as_request(each) for each in server.requests if _ours(each)),
            frozenset(methods.called),
            frozenset(each.user_agent for each in server.requests if _ours(each)),
        )


async def _live(extender: Extender, admin: ApiClient) -> None:
    asked = [_bound_in(admin, namespace, gpus) for namespace in _TEAMS for gpus in (True, False)]
    extender.start()
    try:
        eventually(lambda: not extender.leadership.not_binding(), "it binds")
        for body in asked:
            answer = await extender.handler.bind(partial(bytes, body))
            assert json.loads(answer.body) == {"Error": ""}
        path = f"/apis/discovery.k8s.io/v1/namespaces/{_NAMESPACE}/endpointslices"
        eventually(
            lambda: "10.0.0.1" in str(admin.list(path)["items"][0]["endpoints"]), "it is found"
        )
    finally:
        extender.stop()
        for _ in range(3):  # connections are closed by the loop
            await asyncio.sleep(0)


def _bound_in(admin: ApiClient, namespace: str, gpus: bool) -> bytes:
    """Create a pod, and return what kube-scheduler sends to have it bound."""
    kind = "share" if gpus else "plain"
    made = make_pod(f"{kind}-{namespace}", (50, 8), uid="")
    made["metadata"]["namespace"] = namespace
    if not gpus:  # which the extender does not follow
        del made["spec"]["containers"][0]["resources"]
    metadata = admin.create(f"/api/v1/namespaces/{namespace}/pods", made)["metadata"]
    asked = {"PodName": metadata["name"], "PodNamespace": namespace, "PodUID": metadata["uid"]}
    return json.dumps(asked | {"Node": "n1"}).encode()


def _ours(record: RequestRecord) -> bool:
    return not record.user_agent.startswith("gpu-turnstile-simulator")


def test_every_way_in_which_the_extender_asks_is_walked(heard: Heard) -> None:
    """Else a verb could go unnoticed by the tests below."""
    assert client_methods() == heard.methods


def test_audit_logs_name_the_extender(heard: Heard) -> None:
    assert heard.user_agents == {"gpu-turnstile-scheduler"}


def test_the_extender_may_do_what_it_asks_for(heard: Heard) -> None:
    lines = too_little("scheduler", heard.requests, read(DEPLOY))
    assert not lines, "\n".join(["", *lines])


def test_the_extender_may_do_nothing_that_it_never_asks_for(heard: Heard) -> None:
    manifests = read(DEPLOY)
    assert rights("scheduler", manifests), "deploy/ grants the extender nothing"
    lines = too_much("scheduler", heard.requests, manifests)
    assert not lines, "\n".join(["", *lines])


def test_it_asks_for_these(heard: Heard) -> None:
    """The list for people; the manifests have it once more for the API server."""
    assert {(each.verb, each.resource) for each in heard.requests} == {
        ("list", "nodes"),
        ("watch", "nodes"),
        ("list", "pods"),
        ("watch", "pods"),
        ("get", "pods"),
        ("create", "pods/binding"),
        ("get", "leases"),
        ("create", "leases"),
        ("update", "leases"),
        ("get", "endpointslices"),
        ("patch", "endpointslices"),
    }
