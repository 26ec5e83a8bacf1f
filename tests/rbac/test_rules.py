"""RBAC as Kubernetes has it, on examples and on random rules."""

from typing import Any

import pytest

from tests.rbac.rules import ANY, Permission, Request, missing, permissions, superfluous


def rights(*rules: dict[str, Any], namespace: str = "") -> list[Permission]:
    return list(permissions(rules, file="f", role="Role r", namespace=namespace))


def rule(**changes: Any) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]} | changes


GET = Request("get", "", "pods", "team-a", "p")


@pytest.mark.parametrize(
    ("changes", "request_"),
    [
        ({}, GET),
        ({"verbs": ["list", "get"]}, GET),
        ({"verbs": [ANY]}, GET),
        ({"apiGroups": ["apps", ""]}, GET),
        ({"apiGroups": [ANY]}, GET),
        ({"resources": [ANY]}, GET),
        ({"resources": [ANY]}, Request("get", "", "pods/status", "team-a", "p")),
        ({"resources": ["pods/status"]}, Request("get", "", "pods/status", "team-a", "p")),
        ({"resources": ["*/status"]}, Request("get", "", "pods/status", "team-a", "p")),
        ({"resourceNames": ["p"]}, GET),
        ({"resourceNames": []}, GET),
        ({"verbs": ["list"]}, Request("list", "", "pods")),
    ],
)
def test_what_a_rule_allows(changes: dict[str, Any], request_: Request) -> None:
    assert missing([request_], rights(rule(**changes))) == []


@pytest.mark.parametrize(
    ("changes", "request_"),
    [
        ({"verbs": ["list"]}, GET),
        ({"verbs": ["Get"]}, GET),
        ({"apiGroups": ["apps"]}, GET),
        ({"apiGroups": []}, GET),
        ({"resources": ["nodes"]}, GET),
        ({"resources": ["pods/status"]}, GET),
        ({"resources": ["*/status"]}, GET),
        ({"resources": ["pods"]}, Request("get", "", "pods/status", "team-a", "p")),
        ({"resources": ["*/"]}, GET),
        ({"resourceNames": ["q"]}, GET),
        # A list, or a create, has no name: a rule with names never fits it.
        ({"verbs": ["list"], "resourceNames": ["p"]}, Request("list", "", "pods", "team-a")),
        ({"verbs": ["create"], "resourceNames": ["p"]}, Request("create", "", "pods", "team-a")),
    ],
)
def test_what_a_rule_does_not_allow(changes: dict[str, Any], request_: Request) -> None:
    assert missing([request_], rights(rule(**changes))) == [request_]


def test_a_binding_in_a_namespace_holds_there_alone() -> None:
    own = rights(rule(verbs=["get", "list"]), namespace="team-a")
    asked = [
        GET,
        Request("get", "", "pods", "team-b", "p"),
        Request("list", "", "pods"),
        Request("list", "", "pods", "team-a"),
    ]
    assert missing(asked, own) == [asked[1], asked[2]]


MANY = [Request("get", "", "pods", "team-a", "p"), Request("get", "", "pods", "team-b", "q")]


@pytest.mark.parametrize(
    ("asked", "given", "what", "advice"),
    [
        (MANY, rule(verbs=["get", "delete"]), 'verb "delete" on "pods"', "remove it"),
        (MANY, rule(resources=["pods", "pods/status"]), '"pods/status"', "remove it"),
        (MANY, rule(apiGroups=["", "apps"]), 'apiGroup "apps"', "remove it"),
        (MANY, rule(verbs=[ANY]), 'verb "*"', 'write out what "*" stands for'),
        (MANY, rule(resources=["*/status"]), "*/status", 'write out what "*/status" stands for'),
        (MANY, rule(resourceNames=["p", "q", "r"]), 'named "r"', "remove it"),
        ([GET], rule(), '"pods"', 'limit it with resourceNames: ["p"]'),
        (
            [GET, Request("get", "", "pods", "team-a", "q")],
            rule(),
            '"pods"',
            "grant it by a Role in namespace team-a instead",
        ),
        (
            MANY,
            {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
            'verb "get" on /metrics',
            "remove it",
        ),
    ],
)
def test_what_is_superfluous_is_told_with_what_to_do(
    asked: list[Request], given: dict[str, Any], what: str, advice: str
) -> None:
    said = [text for right, text in superfluous(asked, rights(given)) if what in str(right)]
    assert said == [advice]
