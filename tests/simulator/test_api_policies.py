"""ValidatingAdmissionPolicies on the simulated API server, as a real one goes about them."""

from typing import Any

import pytest

from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Json
from tests.simulator.api_helpers import PODS, Hook, patch_with, pod, rule

NEVER = {"expression": "false", "message": "never"}
_ADMISSION = "admissionregistration.k8s.io/v1"


def policy(*validations: Json, name: str = "p", **spec: Any) -> Json:
    """Make a policy on new pods."""
    matching = {"resourceRules": [rule("pods")]}
    return {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": matching, "validations": list(validations), **spec},
    }


def binding(name: str = "p", *actions: str, of: str = "p", **spec: Any) -> Json:
    """Make a binding of a policy."""
    return {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": of, "validationActions": list(actions) or ["Deny"], **spec},
    }


def _refused(client: ApiClient, obj: Json | None = None) -> ApiError:
    with pytest.raises(ApiError) as raised:
        client.create(PODS, obj or pod())
    return raised.value


def test_a_policy_does_nothing_until_it_is_bound(server: ApiServer, client: ApiClient) -> None:
    server.apply(policy(NEVER))
    client.create(PODS, pod("before"))
    server.apply(binding())
    error = _refused(client)
    assert (error.status, error.reason) == (422, "Invalid")
    assert error.message == (
        'pods "p" is forbidden: '
        "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: never"
    )


@pytest.mark.parametrize(
    ("validation", "code", "words"),
    [
        (NEVER | {"reason": "Forbidden"}, 403, "denied request: never"),
        ({"expression": " false "}, 422, "denied request: failed expression: false"),
        (
            NEVER | {"messageExpression": "'not ' + object.metadata.name"},
            422,
            "denied request: not p",
        ),
        (NEVER | {"messageExpression": "object.nothing"}, 422, "denied request: never"),
        (NEVER | {"messageExpression": "'a\\nb'"}, 422, "denied request: never"),
        (NEVER | {"messageExpression": "'  '"}, 422, "denied request: never"),
        ({"expression": "object.nothing == 1"}, 422, "resulted in error"),
        ({"expression": "1"}, 422, "must evaluate to bool"),
    ],
    ids=str,
)
def test_a_denial_is_worded_as_the_real_server_words_it(
    server: ApiServer, client: ApiClient, validation: Json, code: int, words: str
) -> None:
    server.apply(policy(validation), binding())
    error = _refused(client)
    assert error.status == code
    assert words in error.message


def test_a_policy_sees_what_all_webhooks_made(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    label = {"op": "add", "path": "/metadata/labels", "value": {"late": "1"}}
    hook.respond = patch_with(label)
    server.apply(hook.configuration())
    unlabelled = {"expression": "!has(object.metadata.labels)", "message": "labelled"}
    server.apply(policy(unlabelled), binding())
    assert _refused(client).message.endswith("labelled")


@pytest.mark.parametrize(
    ("failing", "created"),
    [
        ({"matchConditions": [{"name": "no", "expression": "object.metadata.name == 'q'"}]}, True),
        (
            {"matchConditions": [{"name": "yes", "expression": "object.metadata.name == 'p'"}]},
            False,
        ),
        (
            {
                "matchConditions": [
                    {"name": "broken", "expression": "object.nothing == 1"},
                    {"name": "no", "expression": "false"},
                ]
            },
            True,
        ),
        ({"matchConditions": [{"name": "broken", "expression": "object.nothing == 1"}]}, False),
        (
            {
                "failurePolicy": "Ignore",
                "matchConditions": [{"name": "broken", "expression": "object.nothing == 1"}],
            },
            True,
        ),
        ({"failurePolicy": "Ignore"}, False),
    ],
    ids=str,
)
def test_conditions_keep_a_request_from_a_policy(
    server: ApiServer, client: ApiClient, failing: Json, created: bool
) -> None:
    server.apply(policy(NEVER, **failing), binding())
    if created:
        client.create(PODS, pod())
    else:
        _refused(client)


@pytest.mark.parametrize(
    ("selection", "denied"),
    [
        ({"resourceRules": [rule("*")]}, True),
        ({"resourceRules": [rule("pods", operations=["UPDATE"])]}, False),
        ({"resourceRules": [rule("pods") | {"resourceNames": ["q"]}]}, False),
        ({"resourceRules": [rule("pods") | {"resourceNames": ["p"]}]}, True),
        ({"resourceRules": [rule("*")], "excludeResourceRules": [rule("pods")]}, False),
        (
            {
                "resourceRules": [rule("pods")],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "x"}},
            },
            False,
        ),
        ({"resourceRules": [rule("pods")], "objectSelector": {"matchLabels": {"a": "b"}}}, False),
    ],
    ids=str,
)
def test_only_selected_requests_reach_a_policy(
    server: ApiServer, client: ApiClient, selection: Json, denied: bool
) -> None:
    server.apply(policy(NEVER, matchConstraints=selection), binding())
    if denied:
        _refused(client)
    else:
        client.create(PODS, pod())


def test_a_policy_knows_who_asks(server: ApiServer) -> None:
    by_name = {"expression": "request.userInfo.username == 'chooser'", "message": "not you"}
    server.apply(policy(by_name), binding())
    with ApiClient(server.url, user="chooser") as call, ApiClient(server.url) as admin:
        call.create(PODS, pod())
        assert _refused(admin).message.endswith("not you")


def test_updates_bindings_and_deletions_are_judged_too(
    server: ApiServer, client: ApiClient
) -> None:
    client.create(PODS, pod())
    every = {"resourceRules": [rule("pods", "pods/binding", operations=["*"])]}
    old = {"expression": "oldObject == null", "message": "there was one"}
    server.apply(policy(old, matchConstraints=every), binding())
    with pytest.raises(ApiError, match="there was one"):
        client.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(ApiError, match="there was one"):
        client.delete(f"{PODS}/p")
    server.apply(policy(NEVER, matchConstraints=every))
    with pytest.raises(ApiError, match="never"):
        client.create(
            f"{PODS}/p/binding",
            {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}},
        )
