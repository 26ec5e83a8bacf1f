"""The page beside a simulated API server: what it follows, and the process it runs in."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import SettingsError, Unavailable
from contract.names import Names
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.api.server import Settings as ApiSettings
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.common.serving.through import client_of
from tests.placement.cluster.builders import NAMES, Json, make_node
from tests.view.conftest import asked_of, populate
from tests.view.web.browsing import serving
from tests.view.web.sample import cluster, held_pod
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.model import state
from view.model.node_facts import NodeFacts, read_node
from view.model.pod_explanation import PodExplanation
from view.model.reports import ClusterReport, Freshness
from view.model.state import ClusterState
from view.web import server as module
from view.web.app import contact, create_app
from view.web.feed import Feed
from view.web.hosts import Hosts
from view.web.live import Live
from view.web.metrics import Metrics
from view.web.server import PageServer, connection_of
from view.web.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer(ApiSettings(bookmark_s=0.1)) as running:
        populate(running, cluster())
        yield running


@pytest.fixture
def settings(api: ApiServer, tmp_path: Path) -> Settings:
    (tmp_path / "kubeconfig").write_text(kubeconfig_for(api.url))
    return Settings(names=NAMES, kubeconfig=tmp_path / "kubeconfig", streams=2)


@pytest.fixture
def live(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setattr("view.web.live._PAUSE_SECONDS", 0.01)
    connection = connection_of(settings)
    live = Live(
        connection.client,
        ClusterState(settings.names),
        Feed(1),
        Metrics(),
        namespace=connection.namespace,
        patience=0.05,
    )
    assert live.not_ready() == "not ready yet: nodes and pods are being listed"
    yield live
    live.stop()
    assert live.not_ready() == "shutting down"


def names(live: Live) -> set[str]:
    return {each.name for each in live.edition.report.nodes}


def test_editions_follow_the_cluster(api: ApiServer, live: Live) -> None:
    live.start()
    eventually(lambda: live.edition.report.denied, "all is there")
    assert names(live) == {"a100-1", "a100-2", "l40s-1", "l40s-2"}
    assert [each.name for each in live.edition.report.denied] == ["embedder-6b8f"]
    before = live.edition.number
    with ApiClient(api.url) as admin:
        api.apply(make_node("new"))
        eventually(lambda: "new" in names(live), "the new node")
        admin.delete("/api/v1/nodes/new")
        eventually(lambda: "new" not in names(live), "it has gone")
        api.apply(make_node("late"))
        eventually(lambda: "late" in names(live), "the late node")
        # Gone while nobody was watching: the list tells.
        api.expire_history()
        admin.delete("/api/v1/nodes/late")
        api.drop_watches()
    eventually(lambda: "late" not in names(live), "it has gone too")
    assert live.edition.number > before


def test_an_explanation_has_the_events_of_its_pod(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.start()
    eventually(lambda: not live.not_ready(), "it is ready")
    for away in (False, True):
        if away:
            monkeypatch.setattr(LiveCluster, "load_events_of", _fail)
        explanation = live.explain("vision", "augment-xl")
        assert explanation is not None
        assert [each.reason for each in explanation.pod.events] == ["GPURefused"]
    assert live.explain("vision", "nobody") is None


def _fail(*_: object) -> None:
    raise Unavailable("away")


def test_a_page_shows_within_15_seconds_that_the_api_server_is_unreachable(
    api: ApiServer, tmp_path: Path
) -> None:
    with serving(api.url, tmp_path) as page:
        assert 'data-stale=""' in page.ask("/")[1]
        api.fail(SILENCE)  # connections stay open, and silent, as of a process that is stopped
        began = time.monotonic()
        page.wait(lambda: page.ask("/readyz")[0] == 503)
        # On an idle machine after 10 s. What was last known to be so is 10 s old then.
        assert time.monotonic() - began < 15 or os.getloadavg()[0] > 2
        why = "the API server is unreachable (no response in time)"
        assert page.ask("/readyz")[1].endswith(f"Z: {why}\n")
        text = page.ask("/")[1]
        assert f'data-state="stale">Stale: {why}</span> <span id="age">data from 20' in text
        assert "a100-1" in text  # what was known then
        assert "gpu_turnstile_view_in_step 0.0" in page.ask("/metrics")[1]
        assert f'data-stale="{why}"' in page.ask("/rows?since=0")[1]
        api.restore()
        page.wait(lambda: page.ask("/readyz")[0] == 200)
        assert 'data-stale=""' in page.ask("/")[1]


def test_browsers_get_the_age_of_the_data(live: Live) -> None:
    live.start()
    eventually(lambda: not live.not_ready(), "it is ready")
    fresh = live.freshness
    assert json.loads(contact(fresh, fresh.at + 3.25)) == {"age": 3.2, "stale": ""}
    assert json.loads(contact(Freshness(0, "\u202e"), 9.0)) == {"age": None, "stale": "\\u202e"}


def test_rights_that_are_taken_away_leave_nothing_known(api: ApiServer, tmp_path: Path) -> None:
    with serving(api.url, tmp_path) as page:
        assert "finetune-70b" in page.ask("/")[1]
        api.deny("(list|watch) /api/v1/(.*/)?pods", "(list|watch|get) /api/v1/nodes.*")
        api.drop_watches()
        page.wait(lambda: page.ask("/readyz")[1] == "nodes and pods may not be read\n")
        text = page.ask("/")[1]
        assert "finetune-70b" not in text
        assert "Pending, failing or refused pods: unknown" in text
        assert "Nodes, cards and free amounts: <b>unknown</b>" in text
        assert "Unknown: no permission to read nodes." in text
        assert "No node has GPUs" not in text
        assert "Missing permission: list nodes" in text
        assert "kubectl create clusterrole gpu-viewer" in text


def test_a_pods_page_outlives_its_pod(api: ApiServer, live: Live) -> None:
    live.start()
    eventually(lambda: names(live), "it is ready")
    pod = held_pod("llm", "short", ("a100-2", 3, 10, 1))
    populate(api, [pod])
    eventually(lambda: live.explain("llm", "short"), "the pod is known")
    with ApiClient(api.url) as admin:
        admin.delete("/api/v1/namespaces/llm/pods/short", grace_period_seconds=0)

    def explanation() -> PodExplanation:
        found = live.explain("llm", "short")
        assert found is not None
        return found

    eventually(lambda: explanation().deleted, "its end is said")
    app = create_app(live, Feed(1), hosts=Hosts(), metrics=Metrics())
    text = app.test_client().get("/pods/llm/short").text
    assert "Deleted at <time" in text
    assert "card 3: 10 cores, 1 block" in text
    assert "evidence witness: no other container matched the call" in text


def test_events_of_a_pod_are_read_once_for_all_viewers(api: ApiServer, tmp_path: Path) -> None:
    since = len(api.requests)
    with serving(api.url, tmp_path) as page:
        for _ in range(5):
            assert page.ask("/pods/vision/augment-xl")[0] == 200
        lists = [each for each in asked_of(api, since) if each.startswith("list ")]
        assert lists.count("list /api/v1/namespaces/vision/events") == 1
        assert [lists.count(f"list /api/v1/{each}") for each in ("nodes", "pods")] == [1, 1]


def test_an_object_that_cannot_be_read_affects_no_other(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[str] = []

    def fail_at_one(obj: Json, names: Names) -> NodeFacts:
        if obj["metadata"]["name"] == "a100-2":
            failed.append("a100-2")
            raise ValueError("a mistake of ours")
        return read_node(obj, names)

    monkeypatch.setattr(state, "read_node", fail_at_one)
    live.start()
    eventually(lambda: names(live), "an edition")
    assert names(live) == {"a100-1", "l40s-1", "l40s-2"}
    assert failed
    assert "object passed over" in {each.message for each in caplog.records}


def test_a_page_that_cannot_be_updated_is_not_ready_and_logs_it_once(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live.start()
    eventually(lambda: names(live) and not live.not_ready(), "it is ready")
    real = live._cluster.report
    failed: list[str] = []

    def fail() -> ClusterReport:
        failed.append("again")
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(live._cluster, "report", fail)
    eventually(lambda: "old" in live.not_ready(), "it is not ready any more")
    eventually(lambda: len(failed) > 1, "it tries again")
    assert [each.message for each in caplog.records].count("making an edition failed") == 1
    monkeypatch.setattr(live._cluster, "report", real)
    eventually(lambda: not live.not_ready(), "it is ready again")


# --- the process ----------------------------------------------------------------------


def test_the_worker_serves_the_page_and_ends_it(settings: Settings) -> None:
    server = PageServer(replace(settings, prometheus=Prometheus("http://127.0.0.1:1")))
    assert server.connections == 802
    assert server.cfg.bind == ["127.0.0.1:8480"]
    server.end()
    client = client_of(server.load())
    eventually(lambda: client.get("/readyz").status_code == 200, "it is ready")
    for line in ("in_step 1.0", "known_nodes 4.0", "streams 0.0", "streams_refused 0.0"):
        assert f"gpu_turnstile_view_{line}" in client.get("/metrics").text
    eventually(lambda: "Prometheus is unreachable" in client.get("/use").text, "it was asked")
    server.end()
    assert client.get("/readyz").text == "shutting down\n"
    server.end()


def test_what_cannot_be_used_is_found_before_the_port_is_opened(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[PageServer] = []
    monkeypatch.setattr(PageServer, "run", lambda server: ran.append(server))  # noqa: PLW0108 -- bound
    module.serve(settings)
    (tmp_path / "kubeconfig").write_text("[]")
    with pytest.raises(SettingsError, match="cannot use"):
        module.serve(settings)
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        (b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", 500),
        (b"GET / HTTP/1.1\r\nHost: loc", 900),  # half a header
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", 90),
    ],
)
def test_hundreds_of_browsers_keep_no_probe_waiting(
    api: ApiServer, tmp_path: Path, sent: bytes, count: int
) -> None:
    with serving(api.url, tmp_path, "--streams", "500") as page, ExitStack() as browsers:
        for _ in range(count):
            browser = browsers.enter_context(socket.create_connection(("127.0.0.1", page.port)))
            browser.sendall(sent)
        for _ in range(3):
            assert page.ask("/healthz") == (200, "ok\n")
        if b"/events" in sent:
            assert "gpu_turnstile_view_streams 500.0" in page.ask("/metrics")[1]
    assert "WORKER TIMEOUT" not in page.log.read_text()


def test_a_process_streams_and_ends_at_once_though_a_browser_listens(
    api: ApiServer, tmp_path: Path
) -> None:
    with serving(api.url, tmp_path, "--streams", "1") as page:
        connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
        connection.request("GET", "/events?since=1")
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 3000\n"
        assert page.ask("/events", "HEAD") == (200, "")
        refused = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
        refused.request("GET", "/events")
        response = refused.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "30")
        refused.close()
        assert stream.readline() == b"\n"
        assert stream.readline().startswith(b"id: ")
        page.process.send_signal(signal.SIGTERM)
        assert stream.read().endswith(b"\n\n")
        connection.close()
        page.process.wait(30)
        assert page.process.returncode == 0
    text = page.log.read_text()
    assert all(each.startswith("{") for each in text.splitlines()), text
    lines = [json.loads(each) for each in text.splitlines()]
    assert [each["message"] for each in lines if each["level"] in {"warning", "error"}] == []
