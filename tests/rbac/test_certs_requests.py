"""The rotation may do what it asks for, and nothing else; the webhook may do nothing.

``python -m certs rotate`` runs with the arguments of the Job in deploy/: on a cluster that has
nothing, again when all is done, and on Secrets that somebody emptied.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from certs import cluster
from certs.__main__ import main
from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, Settings, kubeconfig_for
from simulator.client import ApiClient
from tests.rbac.agent_life import Methods
from tests.rbac.comparison import rights, too_little, too_much
from tests.rbac.manifests import (
    DEPLOY,
    PROGRAMS,
    ROOT,
    accounts,
    containers,
    read,
    tokenless,
    unbound,
    words,
)
from tests.rbac.recording import as_request
from tests.rbac.rules import Request

_APIS = (client.CoreV1Api, client.AdmissionregistrationV1Api)
# Who serves what is asked of the replicas themselves, of whom there are none here.
_LEFT_OUT = "GPU_TURNSTILE_CERTS_REPLICAS"


@dataclass(frozen=True)
class Heard:
    """What rotations asked for, and which methods of the Kubernetes client they called."""

    requests: frozenset[Request]
    methods: frozenset[str]
    user_agents: frozenset[str]


def client_methods() -> set[str]:
    """Find the methods of the Kubernetes client that the one importer of it names."""
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(cluster)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in ("_core", "_admission")
    }


def arguments(container: dict[str, Any]) -> list[str]:
    said = words(container)
    return said[said.index("certs") + 1 :]


def webhook_configurations() -> list[dict[str, Any]]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [each.body for each in read(DEPLOY / "base") if each.kind in kinds]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    methods = Methods()
    kubeconfig = tmp_path_factory.mktemp("certs") / "kubeconfig"
    with (
        pytest.MonkeyPatch.context() as patch,
        ApiServer(Settings(bookmark_s=0.1)) as server,
        ApiClient(server.url) as admin,
    ):
        kubeconfig.write_text(kubeconfig_for(server.url))
        for api in _APIS:
            names = {each for each in client_methods() if hasattr(api, each)}
            methods.watch(patch, api, names)
        for namespace in ("gpu-turnstile", "gpu-turnstile-node"):
            server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        server.apply(*webhook_configurations())
        jobs = containers(read(DEPLOY), "certs")
        assert {tuple(arguments(each))[:1] for each in jobs} == {("rotate",)}
        for job in jobs:
            _rotate(job, kubeconfig)
        _empty_the_secrets(admin, server)
        for job in jobs:
            _rotate(job, kubeconfig)
        yield Heard(
            frozenset(as_request(each) for each in server.requests if _ours(each)),
            frozenset(methods.called),
            frozenset(each.user_agent for each in server.requests if _ours(each)),
        )


def _ours(record: RequestRecord) -> bool:
    return not record.user_agent.startswith("gpu-turnstile-simulator")


def _rotate(container: dict[str, Any], kubeconfig: Path) -> None:
    at_once = ["--kubeconfig", str(kubeconfig), "--settle", "0", "--grace", "0"]
    with pytest.MonkeyPatch.context() as patch:
        for each in container.get("env", ()):
            if each["name"] != _LEFT_OUT:
                patch.setenv(each["name"], each.get("value", "gpu-turnstile"))
        assert main([*arguments(container), *at_once]) == 0


def _empty_the_secrets(admin: ApiClient, server: ApiServer) -> None:
    path = "/api/v1/namespaces/gpu-turnstile/secrets"
    for secret in admin.get(path)["items"]:
        name = secret["metadata"]["name"]
        admin.delete(f"{path}/{name}")
        server.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": "gpu-turnstile"},
                "type": secret["type"],
                "data": {},
            }
        )


def test_every_way_in_which_a_rotation_asks_is_walked(heard: Heard) -> None:
    """Else a verb could go unnoticed by the tests below."""
    assert client_methods() == heard.methods


def test_audit_logs_name_the_rotation(heard: Heard) -> None:
    assert heard.user_agents == {"gpu-turnstile-certs"}


def test_nothing_else_of_certs_speaks_with_the_api_server() -> None:
    importers = {
        path.name
        for path in (ROOT / "certs").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "kubernetes" in ast.unparse(node).split()
    }
    assert importers == {"cluster.py"}


def test_a_rotation_may_do_what_it_asks_for(heard: Heard) -> None:
    lines = too_little("certs", heard.requests, read(DEPLOY))
    assert not lines, "\n".join(["", *lines])


def test_a_rotation_may_do_nothing_that_it_never_asks_for(heard: Heard) -> None:
    manifests = read(DEPLOY)
    assert rights("certs", manifests), "deploy/ grants certs nothing"
    lines = too_much("certs", heard.requests, manifests)
    assert not lines, "\n".join(["", *lines])


def test_the_webhook_may_ask_for_nothing_and_has_no_token() -> None:
    manifests = read(DEPLOY)
    (account,) = accounts(manifests, "webhook")
    assert rights("webhook", manifests) == []
    assert tokenless(manifests, account)


def test_no_role_is_for_anybody_else() -> None:
    manifests = read(DEPLOY)
    programs = (*PROGRAMS, "kube-scheduler")
    ours = {account for each in programs for account in accounts(manifests, each)}
    assert unbound(manifests, ours) == []


def test_each_program_has_an_account_of_its_own() -> None:
    manifests = read(DEPLOY)
    found = {each: accounts(manifests, each) for each in (*PROGRAMS, "kube-scheduler")}
    # A rotation of the webhook's certificates may not touch the extender's, and the reverse.
    assert {name: len(each) for name, each in found.items()} == {
        **dict.fromkeys(found, 1),
        "certs": 2,
    }
    assert len(set().union(*found.values())) == len(found) + 1
