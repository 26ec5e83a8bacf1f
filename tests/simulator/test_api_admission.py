"""Webhooks called by the API server over real TLS."""

import base64
import threading

import pytest
import trustme

from simulator.api.server import ApiServer
from simulator.client import ApiClient, ApiError, Json
from tests.agent.fakes import DEADLINE_S
from tests.simulator.api_helpers import CORE, PODS, Hook, allow, deny, pod, rule, running_hook

_WEBHOOK_S = 30
"""The longest time that a webhook may take."""


def failure(client: ApiClient) -> ApiError:
    with pytest.raises(ApiError) as raised:
        client.create(PODS, pod())
    return raised.value


def test_a_review_contains_the_request(server: ApiServer, client: ApiClient, hook: Hook) -> None:
    server.apply(hook.configuration())
    client.create(PODS, pod(limits={CORE: 50}))
    (review,) = hook.reviews
    obj = review.pop("object")
    assert obj["spec"]["containers"][0]["resources"]["limits"] == {CORE: "50"}
    assert "uid" not in obj["metadata"], "the server fills these in after admission"
    assert len(review.pop("uid")) == 36
    assert review == {
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "p",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:admin",
            "groups": ["system:masters", "system:authenticated"],
        },
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }


@pytest.mark.parametrize("kind", ["Mutating", "Validating"])
def test_a_denial_is_worded_as_the_real_server_words_it(
    server: ApiServer, client: ApiClient, hook: Hook, kind: str
) -> None:
    server.apply(hook.configuration(kind))
    for status, code_and_reason, message in (
        (
            {"code": 403, "message": "no", "reason": "Forbidden"},
            (403, "Forbidden"),
            "denied the request: no",
        ),
        ({}, (400, ""), "denied the request without explanation"),
    ):
        hook.respond = deny(**status)
        error = failure(client)
        assert (error.status, error.reason) == code_and_reason
        assert error.message == f'admission webhook "hook.example.com" {message}'
    assert client.list(PODS)["items"] == []


def test_updates_and_deletions_are_reviewed_with_the_old_object(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    client.create(PODS, pod())
    server.apply(hook.configuration(rules=[rule("pods", operations=["UPDATE", "DELETE"])]))
    client.patch(f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}})
    client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}})  # another resource
    client.delete(f"{PODS}/p")
    update, delete = hook.reviews
    assert "labels" not in update["oldObject"]["metadata"]
    assert update["object"]["metadata"]["labels"] == {"a": "b"}
    assert (delete["object"], delete["oldObject"]["metadata"]["name"]) == (None, "p")


@pytest.mark.parametrize(
    ("selection", "called"),
    [
        ({"rules": [rule("*/*")]}, True),
        ({"rules": [rule("pods/status")]}, False),
        ({"rules": [rule("pods", operations=["UPDATE"])]}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "x"}}}, False),
        ({"objectSelector": {"matchLabels": {"app": "demo"}}}, True),
        ({"objectSelector": {"matchLabels": {"app": "other"}}}, False),
    ],
)
def test_only_selected_requests_reach_the_webhook(
    server: ApiServer, client: ApiClient, hook: Hook, selection: Json, called: bool
) -> None:
    server.apply(hook.configuration(**selection))
    client.create(PODS, pod() | {"metadata": {"name": "p", "labels": {"app": "demo"}}})
    assert len(hook.reviews) == called


def test_an_unreachable_webhook_fails_requests_unless_its_failure_is_ignored(
    server: ApiServer, client: ApiClient, authority: trustme.CA
) -> None:
    with running_hook(authority) as stopped:
        server.apply(stopped.configuration())
    error = failure(client)
    assert (error.status, error.reason) == (500, "InternalError")
    assert error.message.startswith(
        'Internal error occurred: failed calling webhook "hook.example.com": '
        f'failed to call webhook: Post "https://localhost:{stopped.port}/review?timeout=10s": '
    )
    server.apply(stopped.configuration(failurePolicy="Ignore"))
    client.create(PODS, pod())


def test_a_certificate_of_another_authority_is_not_trusted(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    stranger = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    config = {"url": f"https://localhost:{hook.port}/", "caBundle": stranger}
    server.apply(hook.configuration(clientConfig=config))
    assert "certificate verify failed" in failure(client).message
    assert hook.reviews == []


def test_a_patch_waits_for_no_other_and_loses_nothing(
    server: ApiServer, client: ApiClient, hook: Hook
) -> None:
    """While a webhook holds one patch up another is stored: the first is made again on top."""
    client.create(PODS, pod())
    inside, release = threading.Event(), threading.Event()

    def respond(request: Json) -> Json:
        if len(hook.reviews) == 1:
            inside.set()
            assert release.wait(_WEBHOOK_S)
        return allow()(request)

    hook.respond = respond
    rules = [rule("pods", operations=["UPDATE"])]
    server.apply(hook.configuration(rules=rules, timeoutSeconds=_WEBHOOK_S))
    slow = threading.Thread(
        target=client.patch, args=(f"{PODS}/p", {"metadata": {"annotations": {"slow": "1"}}})
    )
    slow.start()
    assert inside.wait(DEADLINE_S)
    client.patch(f"{PODS}/p", {"metadata": {"annotations": {"quick": "1"}}})
    release.set()
    slow.join()
    assert client.get(f"{PODS}/p")["metadata"]["annotations"] == {"slow": "1", "quick": "1"}
