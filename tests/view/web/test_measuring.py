"""Periodic queries of agents and Prometheus; the reason of a failure is logged once."""

import logging
from typing import Any

import pytest

from common.apiserver.errors import Rejected
from tests.placement.cluster.builders import NAMES
from tests.view.cluster.fake_api import FakeApi
from tests.view.cluster.test_live import AGENTS, MEASURED, agent
from tests.view.cluster.test_prometheus import prometheus, vector
from view.cluster.prometheus import Prometheus
from view.model.state import ClusterState
from view.model.usage_history import GroupBy
from view.web.feed import Feed
from view.web.live import Live
from view.web.metrics import Metrics


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
