"""What the page asks the API server for, beside what deploy/ grants it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.placement.cluster.builders import NAMES, make_node
from tests.rbac.comparison import rights, too_little, too_much
from tests.rbac.manifests import DEPLOY, read
from tests.rbac.recording import as_request
from tests.rbac.rules import Request
from tests.simulator.api_helpers import eventually
from tests.view.web.sample import held_pod
from view.web.server import Master
from view.web.settings import Settings

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Heard:
    """What the page asked for, and as whom."""

    requests: frozenset[Request]
    user_agents: frozenset[str]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    kubeconfig = tmp_path_factory.mktemp("view") / "kubeconfig"
    with ApiServer(ApiSettings(bookmark_s=0.1)) as server, ApiClient(server.url) as admin:
        kubeconfig.write_text(kubeconfig_for(server.url))
        server.apply(make_node("n1"))
        for name in ("team-a", "team-b"):
            server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            pod = held_pod(name, "p", ("n1", 0, 10, 1))
            pod["metadata"]["uid"] = ""
            admin.create(f"/api/v1/namespaces/{name}/pods", pod)
        master = Master(Settings("127.0.0.1", 8480, NAMES, kubeconfig=kubeconfig))
        client = master.load().test_client()  # type: ignore[attr-defined]  # a Flask application
        eventually(lambda: client.get("/readyz").status_code == 200, "it is ready")
        for path in ("/", "/rows?since=0", "/pods/team-a/p", "/pods/team-b/p", "/metrics"):
            assert client.get(path).status_code == 200
        eventually(
            lambda: len({as_request(each) for each in server.requests if _watches(each)}) >= 3,
            "all watches are open",
        )
        master.end()
        ours = [each for each in server.requests if _ours(each)]
        yield Heard(
            frozenset(as_request(each) for each in ours),
            frozenset(each.user_agent for each in ours),
        )


def _watches(record: RequestRecord) -> bool:
    return _ours(record) and as_request(record).verb == "watch"


def _ours(record: RequestRecord) -> bool:
    return not record.user_agent.startswith("gpu-turnstile-simulator")


def test_audit_logs_name_the_page(heard: Heard) -> None:
    assert heard.user_agents == {"gpu-turnstile-view"}


def test_the_page_may_do_what_it_asks_for_and_nothing_else(heard: Heard) -> None:
    manifests = read(DEPLOY)
    assert rights("view", manifests), "deploy/ grants the page nothing"
    lines = too_little("view", heard.requests, manifests)
    lines += too_much("view", heard.requests, manifests)
    assert not lines, "\n".join(["", *lines])


def test_it_reads_and_never_writes(heard: Heard) -> None:
    """The list for people; the manifests have it once more for the API server."""
    assert {(each.verb, each.resource) for each in heard.requests} == {
        *(("list", "nodes"), ("watch", "nodes")),
        *(("list", "pods"), ("watch", "pods")),
        *(("list", "events"), ("watch", "events")),
    }
