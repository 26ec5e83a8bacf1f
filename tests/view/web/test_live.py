"""The page beside a simulated API server: what it follows, and how old its data may be."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import SettingsError, Unavailable
from contract.names import Names
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.common.serving.through import client_of
from tests.placement.cluster.builders import NAMES, Json, make_node
from tests.view.conftest import requests_since
from tests.view.web.in_process import PageInProcess
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.model import state
from view.model.node_facts import NodeFacts, read_node
from view.model.reports import ClusterReport, Freshness
from view.web import server as module
from view.web.app import contact
from view.web.live import Live
from view.web.server import PageServer
from view.web.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
def new_page(api: ApiServer, tmp_path: Path) -> Iterator[PageInProcess]:
    """A page that has sent no request yet."""
    page = PageInProcess(api.url, tmp_path)
    assert page.live.not_ready() == "not ready yet: nodes and pods are being listed"
    yield page
    page.live.stop()
    assert page.live.not_ready() == "shutting down"


@pytest.fixture
def page(new_page: PageInProcess) -> PageInProcess:
    """A page that is ready."""
    new_page.start()
    return new_page


@pytest.fixture
def live(page: PageInProcess) -> Live:
    """What follows the cluster for the page."""
    return page.live


def names(live: Live) -> set[str]:
    return {each.name for each in live.edition.report.nodes}


def test_editions_follow_the_cluster(api: ApiServer, live: Live) -> None:
    eventually(lambda: live.edition.report.denied, "Events are read")
    assert names(live) == {"a100-1", "a100-2", "l40s-1", "l40s-2"}
    assert [each.name for each in live.edition.report.denied] == ["embedder-6b8f"]
    before = live.edition.number
    with ApiClient(api.url) as admin:
        api.apply(make_node("new"))
        eventually(lambda: "new" in names(live), "a new node is shown")
        admin.delete("/api/v1/nodes/new")
        eventually(lambda: "new" not in names(live), "a deleted node is not shown")
        api.apply(make_node("late"))
        eventually(lambda: "late" in names(live), "another node is shown")
        # Deleted while no watch was open: only a new list shows it.
        api.expire_history()
        admin.delete("/api/v1/nodes/late")
        api.drop_watches()
    eventually(lambda: "late" not in names(live), "the list is read again")
    assert live.edition.number > before


def test_an_explanation_has_the_events_of_its_pod(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unavailable in (False, True):
        if unavailable:
            monkeypatch.setattr(LiveCluster, "load_events_of", _fail)
        explanation = live.explain("vision", "augment-xl")
        assert explanation is not None
        assert [each.reason for each in explanation.pod.events] == ["GPURefused"]
    assert live.explain("vision", "unknown") is None


def _fail(*_: object) -> None:
    raise Unavailable("no response")


def test_events_of_a_pod_are_read_every_10_seconds_for_all_browsers(
    api: ApiServer, page: PageInProcess
) -> None:
    since = len(api.requests)

    def reads() -> int:
        path = "list /api/v1/namespaces/vision/events"
        return requests_since(api, since).count(path)

    for seconds, count in ((0, 1), (9, 1), (1, 2)):
        page.time.now += seconds
        for _ in range(3):
            assert page.client.get("/pods/vision/augment-xl").status_code == 200
        assert reads() == count


def test_a_page_shows_that_the_api_server_is_unreachable(
    api: ApiServer, page: PageInProcess
) -> None:
    assert 'data-stale=""' in page.text()
    api.fail(SILENCE)  # connections stay open and silent, as those of a stopped process
    page.time.now += 10
    assert page.client.get("/readyz").status_code == 200
    page.time.now += 0.5
    response = page.client.get("/readyz")
    why = "the API server is unreachable (no response in time)"
    assert response.status_code == 503
    assert response.text.endswith(f"Z: {why}\n")
    text = page.text()
    assert f'data-state="stale">Stale: {why}</span> <span id="age">data from 20' in text
    assert "a100-1" in text  # the last known state
    assert "gpu_turnstile_view_in_step 0.0" in page.text("/metrics")
    assert f'data-stale="{why}"' in page.text("/rows?since=0")
    api.restore()
    eventually(lambda: page.client.get("/readyz").status_code == 200, "the page is ready again")
    assert 'data-stale=""' in page.text()


def test_browsers_get_the_age_of_the_data(live: Live) -> None:
    fresh = live.freshness
    assert json.loads(contact(fresh, fresh.at + 3.25)) == {"age": 3.2, "stale": ""}
    assert json.loads(contact(Freshness(0, "\u202e"), 9.0)) == {"age": None, "stale": "\\u202e"}


def test_without_permissions_all_data_is_unknown(api: ApiServer, page: PageInProcess) -> None:
    assert "finetune-70b" in page.text()
    api.deny("(list|watch) /api/v1/(.*/)?pods", "(list|watch|get) /api/v1/nodes.*")
    api.drop_watches()
    missing = "nodes and pods may not be read\n"
    eventually(lambda: page.text("/readyz") == missing, "permissions are missing")
    text = page.text()
    assert "finetune-70b" not in text
    assert "Pending, failing or refused pods: unknown" in text
    assert "Nodes, cards and free amounts: <b>unknown</b>" in text
    assert "Unknown: no permission to read nodes." in text
    assert "No node has GPUs" not in text
    assert "Missing permission: list nodes" in text
    assert "kubectl create clusterrole gpu-viewer" in text


def test_an_object_that_cannot_be_read_affects_no_other(
    new_page: PageInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_one(obj: Json, names: Names) -> NodeFacts:
        if obj["metadata"]["name"] == "a100-2":
            raise ValueError("a mistake of ours")
        return read_node(obj, names)

    monkeypatch.setattr(state, "read_node", fail_at_one)
    new_page.start()
    assert names(new_page.live) == {"a100-1", "l40s-1", "l40s-2"}
    assert "object passed over" in {each.message for each in caplog.records}


def test_a_page_that_cannot_be_updated_becomes_not_ready_and_logs_it_once(
    page: PageInProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live, failed = page.live, list[str]()
    real = live._cluster.report

    def fail() -> ClusterReport:
        failed.append("again")
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(live._cluster, "report", fail)
    eventually(lambda: len(failed) > 2, "it tries again")
    assert live.not_ready() == ""  # for 10 s
    page.time.now += 10.1
    assert live.not_ready().endswith("the page is old: an internal error prevents a newer one")
    assert [each.message for each in caplog.records].count("making an edition failed") == 1
    monkeypatch.setattr(live._cluster, "report", real)
    eventually(lambda: not live.not_ready(), "it is ready again")


def test_the_worker_serves_the_page_and_ends_it(settings: Settings) -> None:
    server = PageServer(replace(settings, prometheus=Prometheus("http://127.0.0.1:1")))
    assert server.connections == 802
    assert server.cfg.bind == ["127.0.0.1:8480"]
    server.end()
    client = client_of(server.load())
    eventually(lambda: client.get("/readyz").status_code == 200, "the page is ready")
    for line in ("in_step 1.0", "known_nodes 4.0", "streams 0.0", "streams_refused 0.0"):
        assert f"gpu_turnstile_view_{line}" in client.get("/metrics").text
    eventually(
        lambda: "Prometheus is unreachable" in client.get("/use").text, "Prometheus is queried"
    )
    server.end()
    assert client.get("/readyz").text == "shutting down\n"
    server.end()


@pytest.fixture
def settings(api: ApiServer, tmp_path: Path) -> Settings:
    (tmp_path / "kubeconfig").write_text(kubeconfig_for(api.url))
    return Settings(names=NAMES, kubeconfig=tmp_path / "kubeconfig", streams=2)


def test_unusable_credentials_are_found_before_the_port_is_opened(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[PageServer] = []
    monkeypatch.setattr(PageServer, "run", lambda server: ran.append(server))  # noqa: PLW0108 -- bound
    module.serve(settings)
    (tmp_path / "kubeconfig").write_text("[]")
    with pytest.raises(SettingsError, match="cannot use"):
        module.serve(settings)
    assert len(ran) == 1
