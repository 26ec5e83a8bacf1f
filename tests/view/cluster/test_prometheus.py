"""Usage of agents and of Prometheus, also from an invalid one; a failure is logged once."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from common.apiserver.errors import Rejected
from tests.placement.cluster.builders import NAMES
from tests.view import scenes
from tests.view.cluster.fake_api import FakeApi
from tests.view.cluster.test_live import AGENTS, MEASURED, agent
from tests.view.conftest import ManualTime
from tests.view.model.test_state import state_of
from view.cluster import prometheus as module
from view.cluster.prometheus import Prometheus
from view.model.state import ClusterState
from view.model.usage_history import GroupBy, PastUsage
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics


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


# --- the page's periodic queries ----------------------------------------------------------


def test_measuring_nodes_are_known_until_permission_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    api: Any = FakeApi({AGENTS: [agent("a1", "n1"), agent("a2", "n2")]})
    proxy = f"{AGENTS}/a{{}}%3A9440/proxy/metrics"
    api.responses |= {proxy.format(1): MEASURED, proxy.format(2): "# nothing\n"}
    live = Live(api, ClusterState(NAMES), Feed(1), Metrics(), namespace="default")
    assert live._measure() == 15
    assert set(live.uses) == {"n1"}
    api.responses[AGENTS] = Rejected(403, "pods is forbidden")
    assert [live._measure() for _ in range(2)] == [300, 300]
    assert live.uses == {}
    reasons = [each.reason for each in caplog.records if each.message == "usage not available"]  # type: ignore[attr-defined]
    assert reasons == ["pods is forbidden"]


def test_limits_of_processes_are_shown_where_nothing_is_measured() -> None:
    api: Any = FakeApi({AGENTS: [agent("a1", "n1")]})
    labels = '{namespace="default",pod="a",container="c0",card="GPU-n1-0"}'
    page = "".join(
        f"gpu_turnstile_agent_container_{each}{labels} 30\n"
        for each in ("cores_held", "core_limit")
    )
    api.responses[f"{AGENTS}/a1%3A9440/proxy/metrics"] = page
    state = state_of(scenes.nodes(), [scenes.running("a", (30, 4), "n1", 0)])
    live = Live(api, state, Feed(1), Metrics(), namespace="default")
    assert live._measure() == 15
    assert live.uses == {}
    explanation = live.explain("default", "a")
    assert explanation is not None
    assert explanation.limits[-1] == "c0: MPS limits each process to 30 % of the SMs"


def test_the_last_day_is_queried_from_prometheus(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    api: Any = FakeApi({})
    with prometheus() as server:
        source = Prometheus(server.url.replace("//", "//ana:secret@"))
        live = Live(
            api, ClusterState(NAMES), Feed(1), Metrics(), namespace="default", prometheus=source
        )
        assert live.history is not None
        assert live.history.problem == "Prometheus is being queried"
        assert live._read_history() == 300
        assert [each.pod for each in live.usage(GroupBy.POD, "team")] == ["a", "b", "odd"]
        server.responses = {"": vector()}
        assert [live._read_history() for _ in range(2)] == [15, 15]
    assert live.history.problem.endswith("does it scrape the agents?")
    assert caplog.text.count("usage of the last day not available") == 1
    assert "secret" not in caplog.text
