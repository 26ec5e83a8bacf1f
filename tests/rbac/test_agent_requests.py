"""The agent may do what it asks for, and nothing else.

Two real agents live through everything that makes them ask the API server for something;
what the server then has recorded is held against deploy/, in both directions.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from agent.kubernetes_api import client as api
from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, Settings
from tests.rbac.agent_life import AgentLife, Methods
from tests.rbac.comparison import rights, too_little, too_much
from tests.rbac.manifests import DEPLOY, ROOT, read
from tests.rbac.recording import as_request
from tests.rbac.rules import Request


@dataclass(frozen=True)
class Heard:
    """What two agents asked for, and which methods of their client they called."""

    requests: frozenset[Request]
    methods: frozenset[str]
    user_agents: frozenset[str]


def client_methods() -> set[str]:
    """Find the methods of the agent's client that make a request."""
    (client,) = (
        node
        for node in ast.parse(inspect.getsource(api)).body
        if isinstance(node, ast.ClassDef) and node.name == "Api"
    )
    return {
        method.name
        for method in client.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and {"call", "list", "watch"}
        & {n.attr for n in ast.walk(method) if isinstance(n, ast.Attribute)}
    }


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    methods = Methods()
    with pytest.MonkeyPatch.context() as patch, ApiServer(Settings(bookmark_s=0.1)) as server:
        methods.watch(patch, api.Api, client_methods())
        lives = [
            AgentLife(server, tmp_path_factory.mktemp(node), node=node, namespace=namespace)
            for node, namespace in (("n1", "team-a"), ("n2", "team-b"))
        ]
        for life in lives:
            life.live()
        yield Heard(
            frozenset(as_request(each) for each in server.requests if _ours(each)),
            frozenset(methods.called),
            frozenset(each.user_agent for each in server.requests if _ours(each)),
        )


def _ours(record: RequestRecord) -> bool:
    return not record.user_agent.startswith("gpu-turnstile-simulator")


def test_every_way_in_which_the_agent_asks_is_walked(heard: Heard) -> None:
    """Else a verb could go unnoticed by the tests below."""
    assert client_methods() == heard.methods


def test_audit_logs_name_the_agent(heard: Heard) -> None:
    assert heard.user_agents == {"gpu-turnstile-agent"}


def test_nothing_else_of_the_agent_speaks_with_the_api_server() -> None:
    importers = {
        path.name
        for path in (ROOT / "agent").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if name.partition(".")[0] in ("kubernetes", "requests", "aiohttp", "httpx", "urllib3")
    }
    assert importers == set()
    clients = {
        path.name
        for path in (ROOT / "agent").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if name in ("common.apiserver.client", "common.apiserver.rest")
    }
    assert clients == {"client.py"}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []


def test_the_agent_may_do_what_it_asks_for(heard: Heard) -> None:
    lines = too_little("agent", heard.requests, read(DEPLOY))
    assert not lines, "\n".join(["", *lines])


def test_the_agent_may_do_nothing_that_it_never_asks_for(heard: Heard) -> None:
    manifests = read(DEPLOY)
    assert rights("agent", manifests), "deploy/ grants the agent nothing"
    lines = too_much("agent", heard.requests, manifests)
    assert not lines, "\n".join(["", *lines])


def test_it_asks_for_these(heard: Heard) -> None:
    """The list for people; the manifests have it once more for the API server."""
    assert {(each.verb, each.group, each.resource) for each in heard.requests} == {
        ("list", "", "pods"),
        ("watch", "", "pods"),
        ("get", "", "pods"),
        ("patch", "", "pods"),
        ("patch", "", "nodes"),
        ("create", "", "events"),
        ("patch", "", "events"),
    }
