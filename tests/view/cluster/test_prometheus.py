"""Usage of the last day, from a server with Prometheus' HTTP API, and from invalid ones."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.view.manual_time import ManualTime
from view.cluster import prometheus as module
from view.cluster.prometheus import Prometheus
from view.model.usage_history import PastUsage


def vector(*samples: tuple[dict[str, str], str]) -> bytes:
    """Make the response of a query, as in https://prometheus.io/docs/prometheus/latest/querying/api/."""
    result = [{"metric": labels, "value": [1435781451.781, value]} for labels, value in samples]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


def of(pod: str, value: str) -> tuple[dict[str, str], str]:
    return {"namespace": "team", "pod": pod}, value


RESPONSES = {
    "count_over_time": vector(({}, "144")),
    "clamp_min": vector(of("a", "360"), of("odd", "NaN")),
    " and ": vector(of("a", "1200"), of("odd", "+Inf")),
    "sum by": vector(of("a", "2400"), of("b", "120"), of("odd", "NaN")),
}
"""By what the query has in it: the first that is there."""


class Server(ThreadingHTTPServer):
    """A Prometheus that responds with *status* and *responses*; byte by byte if *drip*."""

    daemon_threads = True

    def __init__(self) -> None:
        self.status, self.responses, self.drip = 200, dict(RESPONSES), False
        self.queries: list[tuple[str, str, str]] = []
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        (query,) = parse_qs(parts.query)["query"]
        self.server.queries.append((parts.path, query, self.headers.get("Authorization", "")))
        body = next(each for key, each in self.server.responses.items() if key in query)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "/x")
        self.end_headers()
        if not self.server.drip:
            self.wfile.write(body)
            return
        for each in body:
            self.wfile.write(bytes([each]))
            self.server.over.wait(0.02)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def prometheus() -> Iterator[Server]:
    """Serve on a free port."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.over.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with prometheus() as running:
        yield running


def test_held_and_idle_amounts_are_queried(server: Server) -> None:
    timing = ManualTime(1_763_802_000.0).timing()
    found = Prometheus(f"{server.url}/below/", timing=timing).last_day()
    assert (found.problem, found.seen, found.at) == ("", 12 * 3600, 1_763_802_000.0)
    assert found.pods == (
        PastUsage("team", "a", 2, 1, 0.3),
        PastUsage("team", "b", 0.1, None, None),
        PastUsage("team", "odd", None, None, None),
    )
    assert {path for path, _, _ in server.queries} == {"/below/api/v1/query"}
    card = "max by (namespace, pod, container, card) (gpu_turnstile_agent_container_cores_{})"
    held, used = card.format("held"), card.format("used")
    over = "sum by (namespace, pod) (sum_over_time(({})[1d:300s]))"
    assert [query for _, query, _ in server.queries] == [
        "count_over_time((count(gpu_turnstile_agent_card_cores_held))[1d:300s])",
        over.format(held),
        over.format(f"{held} and {used}"),
        over.format(f"clamp_min({held} - {used}, 0)"),
    ]


_REFUSED = b'{"status":"error","errorType":"execution","error":"too many samples \\u202e"}'
_NOTHING = "Prometheus has no gpu_turnstile_agent_card_cores_held of the last day: does it scrape"
_GARBAGE = (
    *(b"", b"\xff", b"[" * 100_000, b"[]", b'{"status":"success","data":null}'),
    b'{"status":"success","data":{"result":[{"metric":[],"value":[1,"2"]}]}}',
    b'{"status":"success","data":{"result":[{"metric":{},"value":[1]}]}}',
    b'{"status":"success","data":{"result":[{"metric":{},"value":[1,"two"]}]}}',
)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, vector(), f"{_NOTHING} the agents?"),
        (422, _REFUSED, r"Prometheus responded with 422: too many samples \u202e"),
        (200, _REFUSED, r"Prometheus responded with 200: too many samples \u202e"),
        (401, b"<html>", "Prometheus responded with 401 and no result"),
        (302, vector(), "Prometheus responded with 302 and no result"),
        *((200, each, "Prometheus responded with 200 and no result") for each in _GARBAGE),
        (200, b" " * 2_000_000, "the response of Prometheus is longer than 1 MiB"),
        (0, b" " * 999, "Prometheus did not respond in 0.3 s"),
    ],
)
def test_an_invalid_response_makes_it_unknown_with_a_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, problem: str
) -> None:
    monkeypatch.setattr(module, "_LARGEST", 1 << 20)
    server.status, server.responses, server.drip = status or 200, {"": body}, not status
    found = Prometheus(server.url, seconds=120 if status else 0.3).last_day()
    assert (found.problem, found.pods) == (problem, ())


def test_an_unreachable_prometheus_is_reported() -> None:
    assert Prometheus("http://127.0.0.1:1").last_day().problem == (
        "Prometheus is unreachable: Connection refused"
    )


def test_a_password_goes_to_prometheus_and_nowhere_else(server: Server) -> None:
    url = server.url.replace("//", "//ana:s%40cret@")
    found = Prometheus(url)
    assert found.last_day().problem == ""
    assert {user for _, _, user in server.queries} == {"Basic YW5hOnNAY3JldA=="}
    assert "cret" not in repr(found)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://prometheus", '"ftp://prometheus"'),
        ("prometheus:9090", '"prometheus:9090"'),
        ("http://", '"http://"'),
        ("http://prometheus:port", '"http://prometheus:port"'),
        ("http://prometheus?query=1", '"http://prometheus?query=1"'),
        ("ana:secret@prometheus", '"***@prometheus"'),
    ],
)
def test_an_invalid_url_is_refused_without_showing_its_password(url: str, shown: str) -> None:
    rule = "must be an http:// or https:// URL with a host, and without a query"
    with pytest.raises(ValueError, match=r".") as caught:
        Prometheus(url)
    assert str(caught.value) == f"Invalid value: {shown}: {rule}"
