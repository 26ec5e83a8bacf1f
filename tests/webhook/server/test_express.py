"""What is ordinary, and that the short way and the long one give the same answer."""

import json
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.reviewer import Reviewer
from webhook.handler import Handler
from webhook.server import express
from webhook.server.app import create_app
from webhook.server.connection import Peer, Reply
from webhook.server.express import Ordinary
from webhook.server.tls import Certificate
from webhook.server.worker import FrontWorker, Server
from webhook.settings import Files, Settings

Json = dict[str, Any]
LINES = {
    "Host": "gpu-turnstile-webhook.gpu-turnstile.svc:443",
    "User-Agent": "kube-apiserver-admission",
    "Content-Length": "2",
    "Accept": "application/json, */*",
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
}


def _request(
    body: bytes = b"{}",
    *,
    line: str = "POST /mutate/pods?timeout=10s HTTP/1.1",
    changes: Mapping[str, str | None] | None = None,
) -> bytes:
    lines = {**LINES, "Content-Length": str(len(body)), **(changes or {})}
    head = [line, *(f"{key}: {value}" for key, value in lines.items() if value is not None)]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


def test_what_the_api_server_sends_is_ordinary() -> None:
    request = _request()
    found = express.read(request)
    assert found == Ordinary("/mutate/pods", "application/json", len(request) - 2)
    assert request[found.begin :] == b"{}"


@pytest.mark.parametrize(
    "request_line",
    ["POST /mutate/pods HTTP/1.1", "POST /x HTTP/1.1", "POST /mutate/pods?timeout=500ms HTTP/1.1"],
)
def test_other_paths_are_ordinary_too(request_line: str) -> None:
    assert express.read(_request(line=request_line)) is not None


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /mutate/pods HTTP/1.1",
        "POST /mutate/pods HTTP/1.0",
        "POST /mutate/pods?x=1 HTTP/1.1",
        "POST /mutate/%70ods HTTP/1.1",
        "POST  /mutate/pods HTTP/1.1",
        "POST https://x/mutate/pods HTTP/1.1",
        "post /mutate/pods HTTP/1.1",
    ],
)
def test_an_unusual_request_line_is_not_ordinary(request_line: str) -> None:
    assert express.read(_request(line=request_line)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"Content-Length": None},
        {"Content-Length": "3"},
        {"Content-Length": "02"},
        {"Content-Length": "+2"},
        {"content-length": "2"},
        {"Content-Type": None},
        {"Content-Encoding": "gzip"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "upgrade"},
        {"Connection": "keep-alive, close"},
        {"Expect": "100-continue"},
        {"Upgrade": "h2c"},
        {"Host": None},
        {"Host": "a b"},
        {"Host": "é"},
        {"Accept": " x"},
        {"Accept": "x "},
        {"Accept": "a\r\n b"},
        {"Accept": "a\nb"},
        {"Accept": ""},
        {"Accept": "x" * 2000},
        {"Script-Name": "/x"},
    ],
)
def test_an_unusual_header_is_not_ordinary(changes: dict[str, str | None]) -> None:
    assert express.read(_request(changes=changes)) is None


def test_an_answer_says_all_that_http_wants() -> None:
    written = express.write(HTTPStatus.OK, "text/plain", b"ok", date="today", keep=True)
    assert written == (
        b"HTTP/1.1 200 OK\r\nServer: gpu-turnstile\r\nDate: today\r\nConnection: keep-alive\r\n"
        b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"
    )


PEER = Peer(("192.0.2.1", 1234), ("192.0.2.2", 8443), verified=False)


@pytest.fixture(scope="module")
def worker(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontWorker]:
    """A worker that was never started: it answers requests all the same."""
    files = Files(certificates / "tls.crt", certificates / "tls.key")
    settings = Settings("127.0.0.1", 8443, files, Names())
    server = Server(settings, Certificate(files), tmp_path_factory.mktemp("shared"))
    server.handler = Handler(Reviewer(names=Names(), stamp=lambda: OrderStamp(1, "w", 0)))
    log = server.cfg.logger_class(server.cfg)
    worker = FrontWorker(0, 0, [], server, 30, server.cfg, log)
    worker.wsgi = create_app(server.handler)
    yield worker
    worker.tmp.close()


def _seen(reply: Reply) -> tuple[str, str | None, bytes, bool]:
    """Give what a client sees: status, content type, body, and whether it may go on."""
    head, _, body = reply.content.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    assert fields["content-length"] == str(len(body))
    assert fields["connection"] == ("keep-alive" if reply.keep else "close")
    return status.split(" ")[1], fields["content-type"], body, reply.keep


def _both_ways(
    worker: FrontWorker, monkeypatch: pytest.MonkeyPatch, request: bytes
) -> tuple[Any, Any]:
    assert express.read(request) is not None
    short = _seen(worker.answer(request, PEER))
    with monkeypatch.context() as patched:
        patched.setattr("webhook.server.express.read", lambda _: None)
        return short, _seen(worker.answer(request, PEER))


@pytest.mark.parametrize(
    "sent",
    [
        ("POST /mutate/pods HTTP/1.1", {}, "200"),
        ("POST /mutate/bindings HTTP/1.1", {}, "200"),
        ("POST /validate/workloads?timeout=5s HTTP/1.1", {}, "200"),
        ("POST /nowhere HTTP/1.1", {}, "404"),
        ("POST /mutate/pods HTTP/1.1", {"Connection": "close"}, "200"),
        ("POST /mutate/pods HTTP/1.1", {"Connection": "Keep-Alive"}, "200"),
        ("POST /healthz HTTP/1.1", {}, "405"),
        ("POST /mutate/pods HTTP/1.1", {"Content-Type": "text/plain"}, "415"),
        ("POST /mutate/pods HTTP/1.1", {"Content-Type": "application/json; charset=x"}, "200"),
    ],
)
def test_both_ways_give_the_same_answer(
    worker: FrontWorker,
    monkeypatch: pytest.MonkeyPatch,
    review: Json,
    sent: tuple[str, dict[str, str | None], str],
) -> None:
    line, changes, status = sent
    request = _request(json.dumps(review).encode(), line=line, changes=changes)
    short, long = _both_ways(worker, monkeypatch, request)
    assert short == long
    assert short[0] == status


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.binary(max_size=100) | st.text(max_size=50).map(lambda text: text.encode()),
    content_type=st.sampled_from(["application/json", "text/plain", "application/json;x", ";"]),
)
def test_both_ways_give_the_same_answer_to_anything(
    worker: FrontWorker, monkeypatch: pytest.MonkeyPatch, body: bytes, content_type: str
) -> None:
    request = _request(body, changes={"Content-Type": content_type})
    short, long = _both_ways(worker, monkeypatch, request)
    assert short == long


def test_a_draining_worker_says_close_either_way(
    worker: FrontWorker, monkeypatch: pytest.MonkeyPatch, review: Json
) -> None:
    monkeypatch.setattr(worker, "alive", False)
    short, long = _both_ways(worker, monkeypatch, _request(json.dumps(review).encode()))
    assert short == long
    assert short[3] is False


@settings(max_examples=200, deadline=None)
@given(
    at=st.integers(0, 300),
    change=st.sampled_from(
        [
            lambda data, at: data[:at] + data[at + 1 :],
            lambda data, at: data[:at] + b"\r\n" + data[at:],
            lambda data, at: data[:at] + b" " + data[at:],
            lambda data, at: data[:at] + b"\x00" + data[at + 1 :],
            lambda data, at: data[:at] + b":" + data[at:],
        ]
    ),
)
def test_whatever_is_ordinary_is_answered_as_the_long_way_does(
    worker: FrontWorker, at: int, change: Callable[[bytes, int], bytes]
) -> None:
    damaged = change(_request(), at)
    if express.read(damaged) is None:
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        short, long = _both_ways(worker, monkeypatch, damaged)
    assert short == long
