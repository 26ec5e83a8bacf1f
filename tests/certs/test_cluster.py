"""Objects of the API, and the adapter against a real HTTP API and bad responses."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.cluster import RotationApi
from certs.errors import ClusterError, Conflict
from certs.issue import Issued
from certs.objects import (
    LABEL,
    LABEL_VALUE,
    SERVING_SINCE,
    Json,
    Origin,
    Purpose,
    WebhookKind,
    bundle_patch,
    changed,
    new_secret,
    parse_configuration,
    parse_secret,
    write_stamp,
)
from certs.reading import read_certificate
from simulator.api.server import ApiServer
from tests.certs.fakes import CA, MUTATING, SECRETS, START, configuration, settings


@pytest.fixture
def cluster(kubeconfig: Path) -> RotationApi:
    return RotationApi(settings(kubeconfig=kubeconfig))


def _secret(namespace: str = "gpu") -> Json:
    return new_secret(CA, Purpose.AUTHORITY, namespace=namespace) | {"data": {"a": "YQ=="}}


def test_a_secret_that_exists_has_changed_or_was_deleted_is_a_conflict(
    cluster: RotationApi,
) -> None:
    cluster.write_secret(_secret())
    with pytest.raises(Conflict, match=f"^POST {SECRETS}: 409 "):
        cluster.write_secret(_secret())
    found = cluster.observe().authority.obj
    cluster.write_secret(found | {"data": {}})
    with pytest.raises(Conflict, match=f"^PUT {SECRETS}/{CA}: 409 "):
        cluster.write_secret(found)
    deleted = found | {"metadata": found["metadata"] | {"name": "other"}}
    with pytest.raises(Conflict, match=f"^PUT {SECRETS}/other: 404 "):
        cluster.write_secret(deleted)


def test_a_namespace_that_is_not_there_is_no_conflict(kubeconfig: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        RotationApi(settings(kubeconfig=kubeconfig, namespace="other")).write_secret(
            _secret("other")
        )
    assert str(caught.value).startswith("POST /api/v1/namespaces/other/secrets: 404 ")
    assert not isinstance(caught.value, Conflict)


def test_a_configuration_is_patched_by_the_version_it_was_read_at(
    cluster: RotationApi, issued: Issued
) -> None:
    trusted = (read_certificate(issued.authority.certificate),)
    before = cluster.observe().configurations
    assert [each.kind for each in before] == list(WebhookKind)
    for each in before:
        cluster.write_bundle(each, trusted, datetime.now(UTC))
    after = cluster.observe().configurations
    assert [each.bundles for each in after] == [(trusted, trusted)] * 2
    with pytest.raises(Conflict, match=f"^PATCH {MUTATING}: 409 "):
        cluster.write_bundle(before[0], trusted, datetime.now(UTC))


def test_a_patch_of_a_deleted_webhook_is_a_conflict(
    cluster: RotationApi, server: ApiServer
) -> None:
    found = cluster.observe().configurations[0]
    server.apply(configuration(webhooks=1))
    patch = bundle_patch(found, (), datetime.now(UTC))[1:]
    with pytest.raises(Conflict, match=": 422 "):
        cluster.request("PATCH", MUTATING, patch)


def test_a_bad_kubeconfig_is_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("not: [yaml")
    with pytest.raises(ClusterError, match=rf"\Akubeconfig: cannot use {path}: [^\n]+\Z"):
        RotationApi(settings(kubeconfig=path))


class FixedResponse(RotationApi):
    def __init__(self, status: int, body: bytes, date: str = "") -> None:
        headers = {"Date": date} if date else {}
        response = SimpleNamespace(status=status, data=body, headers=headers, reason="")
        self.settings = settings()
        self._now = lambda: START
        self._rest: Any = SimpleNamespace(host="https://h", request=lambda *_, **__: response)


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@pytest.mark.parametrize("status", [410, 429, 500, 503])
def test_a_failure_that_may_pass_is_a_conflict(status: int) -> None:
    cluster = FixedResponse(status, _status(status, "etcd is\naway"))
    with pytest.raises(Conflict, match=f"^GET {MUTATING}: .*etcd is away$"):
        cluster.observe()
    with pytest.raises(Conflict, match=f"^POST {SECRETS}: .*etcd is away$"):
        cluster.write_secret(_secret())


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_is_reported(status: int) -> None:
    text = 'secrets "s" is forbidden: User "x" cannot create resource "secrets"'
    with pytest.raises(ClusterError) as caught:
        FixedResponse(status, _status(status, text)).write_secret(_secret())
    assert str(caught.value) == f"POST {SECRETS}: {status} {text}"
    assert not isinstance(caught.value, Conflict)


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"data": {"ca.key": "c2VjcmV0'])
def test_a_response_that_is_no_object_is_not_shown(body: bytes) -> None:
    with pytest.raises(ClusterError) as caught:
        FixedResponse(200, body).request("GET", SECRETS)
    assert str(caught.value) == (f"GET {SECRETS}: the response of the API server is not an object")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("minutes", [-6, 6])
def test_clocks_that_do_not_agree_are_refused(minutes: int) -> None:
    theirs = format_datetime(START + timedelta(minutes=minutes), usegmt=True)
    with pytest.raises(ClusterError, match=r"^the clock here shows .* and the API server's shows "):
        FixedResponse(200, b"{}", theirs).request("GET", SECRETS)
    for date in ("", "yesterday", format_datetime(START, usegmt=True)):
        assert FixedResponse(200, b"{}", date).request("GET", SECRETS) == {}


NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_additions_of_others_to_a_secret_are_kept(issued: Issued) -> None:
    obj: Json = {
        "metadata": {"name": "s", "annotations": {"a": "b"}, "labels": {"c": "d"}},
        "type": "Opaque",
        "data": {"more": "YQ=="},
    }
    made = changed(obj, {"ca.crt": issued.authority.certificate}, since=NOW)
    assert made["type"] == "Opaque"
    assert made["metadata"]["labels"] == {"c": "d", LABEL: LABEL_VALUE}
    assert made["metadata"]["annotations"] == {"a": "b", SERVING_SINCE: "2030-01-02T03:04:05Z"}
    assert made["data"]["more"] == "YQ=="
    assert obj["data"] == {"more": "YQ=="}


@pytest.mark.parametrize(
    ("obj", "origin"),
    [
        (None, Origin.ABSENT),
        ({}, Origin.EMPTY),
        ({"metadata": {"labels": None}, "data": {"tls.crt": ""}}, Origin.EMPTY),
        ({"metadata": {"labels": {LABEL: "Helm"}}, "data": {"x": "YQ=="}}, Origin.FOREIGN),
        ({"metadata": {"labels": {LABEL: LABEL_VALUE}}}, Origin.OURS),
    ],
)
def test_the_label_shows_the_owner_of_a_secret(obj: Json | None, origin: Origin) -> None:
    assert parse_secret("s", Purpose.SERVING, obj).origin is origin


@pytest.mark.parametrize(
    ("purpose", "wrong", "problem"),
    [
        (Purpose.AUTHORITY, "serving", "ca.crt: is the certificate of no authority"),
        (Purpose.SERVING, "authority", "tls.crt: is the certificate of an authority"),
    ],
)
def test_swapped_certificates_are_no_pair(
    issued: Issued, purpose: Purpose, wrong: str, problem: str
) -> None:
    pair = getattr(issued, wrong)
    _, certificate, key = purpose.value
    swapped = changed(
        new_secret("s", purpose, namespace="n"), {certificate: pair.certificate, key: pair.key}
    )
    found = parse_secret("s", purpose, swapped)
    assert (found.pair, found.certificate, found.problem) == (None, None, problem)


@pytest.mark.parametrize(
    ("annotations", "path", "value"),
    [
        (None, "/metadata/annotations", {"gpu-turnstile/bundle-changed": "2030-01-02T03:04:05Z"}),
        ({"a": "b"}, "/metadata/annotations/gpu-turnstile~1bundle-changed", "2030-01-02T03:04:05Z"),
    ],
)
def test_a_patch_keeps_other_annotations(
    annotations: Json | None, path: str, value: object
) -> None:
    obj: Json = {
        "metadata": {"resourceVersion": "7", "annotations": annotations},
        "webhooks": [{"clientConfig": {}}],
    }
    assert bundle_patch(parse_configuration(WebhookKind.MUTATING, "c", obj), (), NOW) == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": path, "value": value},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""},
    ]


@given(st.one_of(st.none(), st.text(), st.integers(), st.just("2030-01-01T00:00:00")))
def test_an_annotation_that_is_no_time_is_no_stamp(text: object) -> None:
    obj: Json = {"metadata": {"annotations": {SERVING_SINCE: text}}}
    since = parse_secret("s", Purpose.SERVING, obj).since
    assert since is None or since.tzinfo is not None


def test_a_stamp_is_never_before_what_it_dates() -> None:
    assert write_stamp(NOW) == "2030-01-02T03:04:05Z"
    assert write_stamp(NOW.replace(microsecond=1)) == "2030-01-02T03:04:06Z"
