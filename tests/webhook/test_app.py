"""The webhook's application: its routes, refusals, metrics and log, and hostile requests."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import Client, TestResponse

from common.serving.app import JSON
from contract.names import Names
from contract.other_systems import Dialect
from tests.agent.builders import raising
from tests.common.serving.through import client_of
from tests.examples import any_json, share
from tests.webhook.admission.building import stamp
from webhook.access_log import AccessLog
from webhook.admission.decision import bounded
from webhook.admission.options import AdmissionOptions
from webhook.admission.reviews import LARGEST_BODY, ReviewedResource
from webhook.admission.routes import make_routes
from webhook.app import ReviewHandler, create_app

Json = dict[str, Any]
ROUTES = make_routes(names=Names(), stamp=stamp)


@pytest.fixture
def client() -> Client:
    return client_of(create_app(ReviewHandler(ROUTES)))


def _line(response: TestResponse) -> str:
    """Return the one line of a refusal, without its end."""
    assert response.mimetype == "text/plain"
    assert response.text.endswith("\n")
    assert response.text.count("\n") == 1
    return response.text[:-1]


POD = ReviewedResource("", "v1", "pods", "Pod", "")
BINDING = ReviewedResource("", "v1", "pods", "Binding", "binding")
DEBUG = ReviewedResource("", "v1", "pods", "Pod", "ephemeralcontainers")
SCALE = ReviewedResource("apps", "v1", "deployments", "Scale", "scale")
BETA = ReviewedResource("apps", "v1beta1", "deployments", "Deployment", "")
RAY = ReviewedResource("ray.io", "v1", "jobs", "Job", "")
CHECKS = {
    "/mutate/pods": "checks only CREATE of v1/pods",
    "/mutate/bindings": "stamps only CREATE of v1/pods/binding",
    "/validate/ephemeralcontainers": "checks only UPDATE of v1/pods/ephemeralcontainers",
    "/validate/workloads": "checks only objects with a pod template",
}


@pytest.mark.parametrize(
    ("path", "operation", "target", "name"),
    [
        ("/mutate/pods", "UPDATE", POD, "v1/pods"),
        ("/mutate/pods", "CREATE", BINDING, "v1/pods/binding"),
        ("/mutate/bindings", "UPDATE", BINDING, "v1/pods/binding"),
        ("/mutate/bindings", "CREATE", POD, "v1/pods"),
        ("/validate/ephemeralcontainers", "CREATE", DEBUG, "v1/pods/ephemeralcontainers"),
        ("/validate/ephemeralcontainers", "UPDATE", POD, "v1/pods"),
        ("/validate/workloads", "CREATE", SCALE, "apps/v1/deployments/scale"),
        ("/validate/workloads", "CREATE", BETA, "apps/v1beta1/deployments"),
        ("/validate/workloads", "CREATE", RAY, "ray.io/v1/jobs"),
    ],
)
def test_another_object_or_operation_passes_unread_with_a_warning(
    review: Json, path: str, operation: str, target: ReviewedResource, name: str
) -> None:
    reviewed = {"group": target.group, "version": target.version}
    review["request"] |= {
        "operation": operation,
        "resource": {**reviewed, "resource": target.resource},
        "kind": {**reviewed, "kind": target.kind},
        "subResource": target.subresource,
    }
    response = client_of(create_app(ReviewHandler(ROUTES))).post(path, json=review)
    what = f"gpu-turnstile {CHECKS[path]} here: {operation} of {name} is allowed unchecked"
    assert json.loads(response.text)["response"] == {
        "uid": review["request"]["uid"],
        "allowed": True,
        "warnings": list(bounded([what])),
    }


@pytest.mark.parametrize(
    ("path", "patched"), [("/mutate/pods", False), ("/mutate/pods/dialects", True)]
)
def test_a_pod_of_another_system_is_translated_only_where_its_entry_sends_it(
    review: Json, path: str, patched: bool
) -> None:
    """The entry for our own pods reaches namespaces without translation, too."""
    options = AdmissionOptions(accept=frozenset({Dialect.NVIDIA}))
    routes = make_routes(names=Names(), stamp=stamp, options=options)
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    review["request"]["object"]["spec"]["containers"][0]["resources"] = resources
    response = client_of(create_app(ReviewHandler(routes))).post(path, json=review)
    found = json.loads(response.text)["response"]
    assert (found["allowed"], "patch" in found) == (True, patched)


@pytest.mark.parametrize(
    ("changes", "status", "line"),
    [
        ({"data": b""}, 400, "body: is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"content_type": None}, 415, 'Content-Type: Invalid value: "": must be application/json'),
        (
            {"headers": {"Content-Encoding": "gzip"}},
            415,
            'Content-Encoding: Invalid value: "gzip": compressed bodies are not read',
        ),
        ({"data": b" " * (LARGEST_BODY + 1)}, 413, "body: must be at most 8388608 bytes"),
        ({"method": "GET"}, 405, "GET is not allowed here"),
        ({"path": "/mutate/pods/"}, 404, "no such path"),
        ({"path": "/healthz", "method": "POST"}, 405, "POST is not allowed here"),
    ],
)
def test_a_bad_request_gets_a_status_and_one_line(
    client: Client, changes: dict[str, Any], status: int, line: str
) -> None:
    request = {"path": "/mutate/pods", "method": "POST", "data": b"{}", "content_type": JSON}
    response = client.open(**(request | changes))
    assert response.status_code == status
    assert _line(response) == line
    if status == 405:
        assert response.headers["Allow"] == ("GET, HEAD" if line.startswith("POST") else "POST")


def test_a_bug_of_ours_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    broken = raising(RuntimeError("inner secret"))
    response = client_of(create_app(ReviewHandler(ROUTES), is_ready=broken)).get("/readyz")
    assert response.status_code == 500
    assert _line(response) == "internal error, see the log of the webhook"
    assert "inner secret" in caplog.text


def test_reviews_and_refusals_are_counted(client: Client, review: Json) -> None:
    client.post("/mutate/pods", json=review)
    limits = review["request"]["object"]["spec"]["containers"][0]["resources"]["limits"]
    limits["tencent.com/vcuda-core"] = "150"
    limits["tencent.com/vcuda-memory"] = "x"
    client.post("/mutate/pods", json=review)
    client.post("/mutate/pods", data=b"{}", content_type=JSON)
    client.get("/nowhere")
    response = client.get("/metrics")
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
    prefix = "gpu_turnstile_webhook_"
    lines = response.text.splitlines()
    for line in (
        'reviews_total{route="/mutate/pods",rule="",verdict="patched"} 1.0',
        'reviews_total{route="/mutate/pods",rule="not-a-number",verdict="denied"} 1.0',
        'findings_total{route="/mutate/pods",rule="not-a-number"} 1.0',
        'findings_total{route="/mutate/pods",rule="not-whole-cards"} 1.0',
        'refusals_total{status="400"} 1.0',
        'refusals_total{status="404"} 1.0',
        'review_duration_seconds_count{route="/mutate/pods"} 2.0',
    ):
        assert prefix + line in lines


def test_a_review_leaves_one_log_line_without_contents_of_the_pod(review: Json) -> None:
    lines: list[bytes] = []
    ticks = iter(range(100))
    access = AccessLog(lines.append, lambda: 0.5)
    handler = ReviewHandler(ROUTES, access=access, clock=lambda: next(ticks) * 0.0025)
    review["request"]["name"] = "x" * 300
    response = client_of(create_app(handler)).post("/mutate/pods", json=review)
    assert (response.status_code, response.content_type) == (200, "application/json")
    (line,) = lines
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "webhook.access",
        "pid": os.getpid(),
        "message": "reviewed",
        "uid": review["request"]["uid"],
        "path": "/mutate/pods",
        "kind": "v1/pods",
        "namespace": "team",
        "name": "x" * 250 + "...",
        "operation": "CREATE",
        "dry_run": False,
        "verdict": "patched",
        "rules": [],
        "warnings": 0,
        "duration_ms": 2.5,
    }


ANY = any_json("containers", "resources", "limits", "tencent.com/vcuda-core")


def _paths(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children = document.items() if isinstance(document, dict) else ()
    listed = enumerate(document) if isinstance(document, list) else ()
    return [
        path,
        *(each for key, value in children for each in _paths(value, (*path, key))),
        *(each for key, value in listed for each in _paths(value, (*path, key))),
    ]


FUZZ = settings(
    max_examples=share(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FUZZ
@given(data=st.data())
def test_a_review_with_any_part_replaced_never_ends_in_500(
    client: Client, review: Json, data: st.DataObject
) -> None:
    document: Any = json.loads(json.dumps(review))
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(_paths(document)[1:] or [("request",)]))
        target = document
        for parent in parents:
            target = target[parent]
        target[last] = data.draw(ANY)
    response = client.post(
        "/mutate/pods", data=json.dumps(document), content_type="application/json"
    )
    assert response.status_code in {200, 400}


@FUZZ
@given(
    body=st.binary(max_size=300),
    path=st.sampled_from(["/mutate/pods", "/healthz", "/nowhere"]) | st.text(max_size=10),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "X"]),
    content_type=st.sampled_from(["application/json", "text/plain", "", "multipart/form-data"]),
)
def test_arbitrary_bytes_never_end_in_500(
    client: Client, body: bytes, path: str, method: str, content_type: str
) -> None:
    try:
        environ: dict[str, Any] = {"path": path, "method": method, "data": body}
        response = client.open(**environ, content_type=content_type)
    except (ValueError, UnicodeError):  # the test client cannot even write such a URL
        return
    assert response.status_code < 500
