"""The net under every test: what our programs ask for is seen and held against deploy/."""

from pathlib import Path

from agent.kubernetes_api.client import Api
from common.apiserver.rest import Rest
from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import make_manifest
from tests.rbac.comparison import never_granted
from tests.rbac.manifests import DEPLOY, read
from tests.rbac.recording import Recording
from tests.rbac.rules import Request


def test_what_a_real_agent_asks_for_is_seen_and_what_others_ask_for_is_not(
    asked_of_api_servers: Recording, tmp_path: Path
) -> None:
    asked_of_api_servers.take()
    with ApiServer(Settings()) as server, ApiClient(server.url) as admin:
        server.apply(make_manifest("a"))
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig_for(server.url))
        admin.get("/api/v1/namespaces/default/pods")
        assert Api(path).get_pod("default", "a") is not None
    assert asked_of_api_servers.take() == {"agent": {Request("get", "", "pods", "default", "a")}}


def test_a_request_that_no_role_grants_is_told(
    asked_of_api_servers: Recording, tmp_path: Path
) -> None:
    with ApiServer(Settings()) as server:
        server.apply(make_manifest("a"))
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig_for(server.url))
        Rest(path, user_agent="gpu-turnstile-agent").request(
            "DELETE", "/api/v1/namespaces/default/pods/a", timeout=5
        )
    found = asked_of_api_servers.take()  # else the net would catch this test too
    (line,) = never_granted("agent", found["agent"], read(DEPLOY))
    assert line == (
        "deploy/ lets python -m agent do no such thing: "
        'verb "delete" on "pods" (apiGroup "") named "a", in namespace default'
    )
