"""The adapter against a real HTTP API, and against servers that answer badly."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from certs.cluster import ApiCluster, Time
from certs.errors import ClusterError, Conflict
from certs.issue import Issued
from certs.objects import Kind, Purpose, bundle_patch, new_secret, parse_configuration
from certs.reading import read_certificate
from simulator.api.server import ApiServer, kubeconfig_for
from tests.certs.fakes import configuration

Json = dict[str, Any]
NAMESPACE: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}}


@dataclass
class FakeTime:
    """Sleeps without waiting."""

    seconds: float = 0.0
    naps: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.seconds += seconds

    def times(self) -> Time:
        return Time(monotonic=lambda: self.seconds, sleep=self.sleep, jitter=lambda: 0.0)


def connected(url: str, directory: Path, times: Time | None = None) -> ApiCluster:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(kubeconfig_for(url), encoding="utf-8")
    return ApiCluster("gpu", kubeconfig, times=times)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.apply(NAMESPACE)
        yield running


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> ApiCluster:
    return connected(server.url, tmp_path)


def _secret() -> Json:
    return new_secret("s", "gpu", Purpose.AUTHORITY) | {"data": {"a": "YQ=="}}


def test_a_secret_that_is_there_or_has_changed_or_gone_is_a_conflict(cluster: ApiCluster) -> None:
    cluster.create_secret(_secret())
    with pytest.raises(Conflict, match=r"^secret gpu/s: create: 409 "):
        cluster.create_secret(_secret())
    found = cluster.get_secret("s")
    assert found is not None
    cluster.replace_secret("s", found | {"data": {}})
    with pytest.raises(Conflict, match=r"^secret gpu/s: update: 409 "):
        cluster.replace_secret("s", found)
    with pytest.raises(Conflict, match=r"^secret gpu/other: update: 404 "):
        cluster.replace_secret("other", found)


def test_a_namespace_that_is_not_there_is_no_conflict(tmp_path: Path) -> None:
    with ApiServer() as server:
        cluster = connected(server.url, tmp_path)
        with pytest.raises(ClusterError, match=r"^secret gpu/s: create: 404 ") as caught:
            cluster.create_secret(_secret())
    assert not isinstance(caught.value, Conflict)


@pytest.mark.parametrize("kind", Kind)
def test_a_configuration_is_patched_by_the_version_it_was_read_at(
    cluster: ApiCluster, server: ApiServer, issued: Issued, kind: Kind
) -> None:
    assert cluster.get_configuration(kind, "c") is None
    server.apply(configuration(kind, name="c"))
    obj = cluster.get_configuration(kind, "c")
    assert obj is not None
    found = parse_configuration(kind, "c", obj)
    trusted = (read_certificate(issued.authority.certificate),)
    patch = bundle_patch(found, trusted, datetime.now(UTC))
    cluster.patch_configuration(kind, "c", patch)
    after = cluster.get_configuration(kind, "c")
    assert after is not None
    assert parse_configuration(kind, "c", after).bundles == (trusted, trusted)
    with pytest.raises(Conflict, match=f"^{kind.value} c: patch: 409 "):
        cluster.patch_configuration(kind, "c", patch)


def test_a_patch_of_a_webhook_that_has_gone_is_a_conflict(
    cluster: ApiCluster, server: ApiServer
) -> None:
    server.apply(configuration(Kind.MUTATING, name="c", webhooks=1))
    patch = [{"op": "add", "path": "/webhooks/5/clientConfig/caBundle", "value": ""}]
    with pytest.raises(Conflict, match="patch: 422 "):
        cluster.patch_configuration(Kind.MUTATING, "c", patch)


@pytest.mark.parametrize(
    "content", ["not: [yaml", "[]", "apiVersion: v1", "clusters: 7", None], ids=str
)
def test_a_bad_kubeconfig_is_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClusterError) as caught:
        ApiCluster("gpu", path)
    assert str(caught.value).startswith(f"kubeconfig: cannot use {path}: ")
    assert "\n" not in str(caught.value)


def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="cannot use the pod's service account"):
        ApiCluster("gpu")


# --- servers that answer badly ----------------------------------------------------------

Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def answering(answer: Callable[[int], Answer]) -> Iterator[str]:
    """Serve HTTP: the n-th request gets ``answer(n)``, from 0."""
    count = 0

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal count
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = answer(count)
            count += 1
            self.send_response_only(status)
            for key, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_GET  # noqa: N815 - names of the library

        def log_message(self, *_: object) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _status(code: int, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "message": message}).encode()


@pytest.mark.parametrize("status", [429, 500, 504])
def test_a_read_is_tried_again_while_the_server_is_away_for_a_moment(
    tmp_path: Path, status: int
) -> None:
    fake = FakeTime()

    def answer(count: int) -> Answer:
        return (status, {}, _status(status, "later")) if count < 3 else (200, {}, b"{}")

    with answering(answer) as url:
        assert connected(url, tmp_path, fake.times()).get_secret("s") == {}
    assert fake.naps == [0.2, 0.4, 0.8]


def test_a_read_is_given_up_after_a_minute(tmp_path: Path) -> None:
    fake = FakeTime()
    refusing = _status(503, "etcd is\naway")
    with answering(lambda _: (503, {}, refusing)) as url, pytest.raises(ClusterError) as caught:
        connected(url, tmp_path, fake.times()).get_secret("s")
    assert str(caught.value) == "secret gpu/s: get: API server: 503 etcd is away"
    assert 50 < fake.seconds <= 60


def test_a_write_without_an_answer_is_not_tried_again_but_looked_at(tmp_path: Path) -> None:
    fake = FakeTime()
    with answering(lambda _: (503, {}, b"")) as url:
        cluster = connected(url, tmp_path, fake.times())
        with pytest.raises(Conflict, match="create: API server: 503 "):
            cluster.create_secret(_secret())
        with pytest.raises(Conflict, match="update: API server: 503 "):
            cluster.replace_secret("s", _secret())
    assert fake.naps == []


def test_what_is_forbidden_is_told_and_not_tried_again(tmp_path: Path) -> None:
    text = 'secrets "s" is forbidden: User "x" cannot get resource "secrets"'
    with answering(lambda _: (403, {}, _status(403, text))) as url:
        cluster = connected(url, tmp_path)
        for attempt, verb in (
            (lambda: cluster.get_secret("s"), "get"),
            (lambda: cluster.create_secret(_secret()), "create"),
            (lambda: cluster.replace_secret("s", _secret()), "update"),
        ):
            with pytest.raises(ClusterError) as caught:
                attempt()  # type: ignore[no-untyped-call]  # lambdas have no annotations
            assert str(caught.value) == f"secret gpu/s: {verb}: 403 {text}"
            assert not isinstance(caught.value, Conflict)


@pytest.mark.parametrize("body", [b"[]", b"null", b"<html>", b'{"data": {"ca.key": "c2VjcmV0'])
def test_an_answer_that_is_no_object_is_not_shown(tmp_path: Path, body: bytes) -> None:
    with answering(lambda _: (200, {}, body)) as url, pytest.raises(ClusterError) as caught:
        connected(url, tmp_path).get_secret("s")
    assert str(caught.value) == (
        "secret gpu/s: get: the API server answered with something that is no object"
    )
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("minutes", [-6, 6])
def test_clocks_that_do_not_agree_are_refused(tmp_path: Path, minutes: int) -> None:
    theirs = datetime.now(UTC) + timedelta(minutes=minutes)
    headers = {"Date": format_datetime(theirs, usegmt=True)}
    refused = pytest.raises(
        ClusterError, match=r"^the clock here says .* and the API server's says "
    )
    with answering(lambda _: (200, headers, b"{}")) as url, refused:
        connected(url, tmp_path).get_secret("s")


@pytest.mark.parametrize("date", ["", "yesterday", None])
def test_a_date_that_says_nothing_else_is_no_obstacle(tmp_path: Path, date: str | None) -> None:
    if date is None:
        date = format_datetime(datetime.now(UTC), usegmt=True)
    with answering(lambda _: (200, {"Date": date}, b"{}")) as url:
        cluster = connected(url, tmp_path)
        assert cluster.get_secret("s") == {}
