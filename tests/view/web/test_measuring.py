"""Agents are asked now and then; that nobody may be asked is said once."""

import logging
import threading

import pytest

from common.apiserver.errors import Rejected
from tests.agent.fakes import eventually
from tests.view.cluster.fake_api import FakeApi
from tests.view.cluster.test_live import AGENTS, MEASURED, agent
from view.web.live import Measuring


def test_nodes_that_measure_are_known_until_nobody_may_ask_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("_PERIOD_SECONDS", "_IDLE_SECONDS"):
        monkeypatch.setattr(f"view.web.live.{name}", 0.01)
    api = FakeApi({AGENTS: [agent("a1", "n1"), agent("a2", "n2")]})
    proxy = f"{AGENTS}/a{{}}%3A9440/proxy/metrics"
    api.answers |= {proxy.format(1): MEASURED, proxy.format(2): "# nothing\n"}
    measuring, stop = Measuring(api), threading.Event()
    thread = threading.Thread(target=measuring.run, args=(stop,))
    thread.start()
    eventually(lambda: set(measuring.uses) == {"n1"}, "what is measured")
    api.answers[AGENTS] = Rejected(403, "pods is forbidden")
    eventually(lambda: not measuring.uses, "nothing is known any more")
    del api.answers[proxy.format(1)]
    stop.set()
    thread.join(10)
    told = [each.reason for each in caplog.records if each.message == "use is not shown"]  # type: ignore[attr-defined]
    assert told == ["pods is forbidden"]
