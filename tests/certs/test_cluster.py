"""The adapter against a real HTTP API, and against bad responses."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from certs.cluster import RotationApi
from certs.errors import ClusterError, Conflict
from certs.issue import Issued
from certs.objects import Purpose, WebhookKind, bundle_patch, new_secret
from certs.reading import read_certificate
from simulator.api.server import ApiServer
from tests.certs.fakes import CA, MUTATING, SECRETS, configuration, settings

Json = dict[str, Any]
NOW = datetime(2030, 1, 1, tzinfo=UTC)


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


def test_a_bad_kubeconfig_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("not: [yaml")
    with pytest.raises(ClusterError, match=rf"\Akubeconfig: cannot use {path}: [^\n]+\Z"):
        RotationApi(settings(kubeconfig=path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match=r"service account.*--kubeconfig is not given$"):
        RotationApi(settings())


# --- bad responses ----------------------------------------------------------------------


class FixedResponse(RotationApi):
    """Gets the same response to every request."""

    def __init__(self, status: int, body: bytes, date: str = "") -> None:
        headers = {"Date": date} if date else {}
        response = SimpleNamespace(status=status, data=body, headers=headers, reason="")
        self.settings = settings()
        self._now = lambda: NOW
        self._rest: Any = SimpleNamespace(request=lambda *_, **__: response)


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@pytest.mark.parametrize("status", [410, 429, 500, 503])
def test_a_failure_that_may_pass_is_a_conflict(
    status: int,
) -> None:
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
    theirs = format_datetime(NOW + timedelta(minutes=minutes), usegmt=True)
    with pytest.raises(ClusterError, match=r"^the clock here shows .* and the API server's shows "):
        FixedResponse(200, b"{}", theirs).request("GET", SECRETS)
    for date in ("", "yesterday", format_datetime(NOW, usegmt=True)):
        assert FixedResponse(200, b"{}", date).request("GET", SECRETS) == {}
