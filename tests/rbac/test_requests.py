"""Each program may do what it asks for, and nothing else; the webhook may do nothing.

What the API server has recorded of it is held against deploy/, in both directions.
"""

import ast

import pytest

from tests.rbac import lives
from tests.rbac.comparison import rights, too_little, too_much
from tests.rbac.hearing import Heard
from tests.rbac.manifests import DEPLOY, PROGRAMS, ROOT, accounts, read, tokenless, unbound

LIVES = {
    "agent": lives.agents,
    "certs": lives.rotations,
    "scheduler": lives.extender,
    "view": lives.page,
}
ASKED = {
    "agent": {
        *(f"{verb} pods" for verb in ("list", "watch", "get", "patch")),
        *("get nodes", "patch nodes", "create events", "patch events"),
    },
    "certs": {
        *(f"{verb} secrets" for verb in ("get", "create", "update")),
        *(f"{verb} mutatingwebhookconfigurations" for verb in ("get", "patch")),
        *(f"{verb} validatingwebhookconfigurations" for verb in ("get", "patch")),
    },
    "scheduler": {
        *("list nodes", "watch nodes", "list pods", "watch pods", "get pods"),
        *("create pods/binding", "get endpointslices", "patch endpointslices"),
        *(f"{verb} leases" for verb in ("get", "create", "update")),
    },
    "view": {
        *(f"{verb} {what}" for verb in ("list", "watch") for what in ("nodes", "pods", "events")),
        "get pods/proxy",
    },
}
"""The list for people; the manifests have it once more for the API server."""


@pytest.fixture(scope="module", params=LIVES)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def heard(program: str, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    return LIVES[program](tmp_path_factory.mktemp(program))


def test_every_way_in_which_a_program_asks_is_walked(program: str, heard: Heard) -> None:
    """Else a verb could go unnoticed by the tests below. Audit logs name who asked."""
    assert heard.called == heard.methods
    assert heard.user_agents == {f"gpu-turnstile-{program}"}
    assert {f"{each.verb} {each.resource}" for each in heard.requests} == ASKED[program]


def test_a_program_may_do_what_it_asks_for(program: str, heard: Heard) -> None:
    lines = too_little(program, heard.requests, read(DEPLOY))
    assert not lines, "\n".join(["", *lines])


def test_a_program_may_do_nothing_that_it_never_asks_for(program: str, heard: Heard) -> None:
    manifests = read(DEPLOY)
    assert rights(program, manifests), f"deploy/ grants {program} nothing"
    lines = too_much(program, heard.requests, manifests)
    assert not lines, "\n".join(["", *lines])


@pytest.mark.parametrize(
    ("package", "names", "importers"),
    [
        ("agent", {"kubernetes", "requests", "aiohttp", "httpx", "urllib3"}, set()),
        ("agent", {"common.apiserver.client", "common.apiserver.rest"}, {"client.py"}),
        ("certs", {"kubernetes"}, {"cluster.py"}),
    ],
)
def test_one_module_of_a_program_speaks_with_the_api_server(
    package: str, names: set[str], importers: set[str]
) -> None:
    found = {
        path.name
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if names & {name, name.partition(".")[0]}
    }
    assert found == importers


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []


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
