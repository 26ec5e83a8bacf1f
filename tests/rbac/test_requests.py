"""Each program may do what it asks for, and nothing else; the webhook may do nothing.

What the API server has recorded of it is held against deploy/, in both directions.
"""

import ast
from pathlib import Path

import pytest

from tests.rbac import lives
from tests.rbac.grants import (
    Request,
    accounts,
    missing,
    read,
    reference,
    rights,
    role_keys,
    subjects,
    superfluous,
)

LIVES = {
    "agent": lives.agents,
    "certs": lives.rotations,
    "scheduler": lives.extender,
    "view": lives.page,
}


@pytest.fixture(scope="module", params=LIVES)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def heard(program: str, tmp_path_factory: pytest.TempPathFactory) -> set[Request]:
    by_name = LIVES[program](tmp_path_factory.mktemp(program))
    assert set(by_name) == {program}, "audit logs name who asked"
    return by_name[program]


def test_a_program_may_do_what_it_asks_for_and_nothing_else(
    program: str, heard: set[Request]
) -> None:
    granted = rights(program, read())
    assert missing(heard, granted) == []
    # By OpenShift's admission, which asks whether an account may use an SCC: no request of ours.
    ours = [each for each in granted if each.group != "security.openshift.io"]
    assert superfluous(heard, ours) == []


@pytest.mark.parametrize(
    ("package", "names", "importers"),
    [
        ("agent", {"kubernetes", "requests", "aiohttp", "httpx", "urllib3"}, set()),
        ("agent", {"common.apiserver.client", "common.apiserver.rest"}, {"client.py"}),
        ("certs", {"kubernetes", "requests", "aiohttp", "httpx", "urllib3"}, set()),
        ("certs", {"common.apiserver.client", "common.apiserver.rest"}, {"cluster.py"}),
    ],
)
def test_one_module_of_a_program_speaks_with_the_api_server(
    package: str, names: set[str], importers: set[str]
) -> None:
    found = {
        path.name
        for path in (Path(__file__).parents[2] / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _imported(node)
        if names & {name, name.partition(".")[0]}
    }
    assert found == importers


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [each.name for each in node.names] if isinstance(node, ast.Import) else []


def test_the_webhook_may_ask_for_nothing() -> None:
    assert rights("webhook", read()) == []


def test_every_role_is_bound_and_only_to_accounts_of_our_programs() -> None:
    objects = read()
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    programs = (*LIVES, "webhook", "kube-scheduler", "proxy")
    ours = set().union(*(accounts(objects, each) for each in programs))
    ours.add(("Group", "system:serviceaccounts:gpu-turnstile"))  # its SCC on OpenShift
    assert role_keys(objects) - set(map(reference, bindings)) == set()
    assert [each for each in bindings if subjects(each) - ours] == []


def test_each_program_has_an_account_of_its_own() -> None:
    objects = read()
    found = {each: accounts(objects, each) for each in (*LIVES, "webhook", "kube-scheduler")}
    # A rotation of the webhook's certificates may not touch the extender's, and the reverse.
    assert {name: len(each) for name, each in found.items()} == {
        **dict.fromkeys(found, 1),
        "certs": 2,
    }
    assert len(set().union(*found.values())) == len(found) + 1
