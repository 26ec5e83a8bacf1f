"""Commands with ``--watch``: what changes, and how old the data is."""

import re
import threading
from functools import partial
from io import StringIO
from typing import Any, Self

import pytest

from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import make_node
from tests.view.conftest import requests_since
from tests.view.manual_time import ManualTime
from tests.view.terminal.test_pages import Terminal
from view.terminal import commands
from view.terminal.context import CommandContext

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kubeconfig")]


class Watch:
    """A command that watches in a thread, until it is interrupted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: StringIO, *words: str) -> None:
        self.time = ManualTime()
        self.code: object = None
        self._out, self._words, self._over = out, words, threading.Event()
        make = partial(CommandContext, timing=self.time.timing())
        monkeypatch.setattr("view.terminal.options.CommandContext", make)
        monkeypatch.setattr("sys.stdout", out)
        wait = CommandContext._next

        def wait_or_end(*arguments: Any) -> int:
            if self._over.is_set():
                raise KeyboardInterrupt
            return wait(*arguments)

        monkeypatch.setattr(CommandContext, "_next", wait_or_end)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            commands.main(self._words)
        except SystemExit as end:
            self.code = end.code

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def text(self) -> str:
        """Return what it has printed so far."""
        return self._out.getvalue()

    def wait_for(self, text: str) -> None:
        """Return when it has printed a text."""
        eventually(lambda: text in self.text(), text)


def test_a_watch_shows_that_it_is_stale_and_current_again(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Watch(monkeypatch, StringIO(), "pods", "-w", "--no-color") as watch:
        watch.wait_for("Data from ")
        api.fail(SILENCE)
        watch.time.now += 11
        stale = "(11s ago): the API server is unreachable (no response in time)"
        watch.wait_for(stale)
        assert "\nSTALE: data from " in watch.text()
        pages = watch.text().count("Data from ")
        api.restore()
        eventually(lambda: watch.text().count("Data from ") > pages, "a current page")


def test_a_json_watch_shows_that_it_is_stale(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Watch(monkeypatch, StringIO(), "nodes", "-w", "-o=json") as watch:
        watch.wait_for('"stale": ""')
        api.fail(SILENCE)
        watch.time.now += 11
        watch.wait_for('"stale": "the API server is unreachable')


def test_a_stale_page_is_colored_in_a_terminal_and_its_age_increases(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Watch(monkeypatch, Terminal(), "nodes", "n1", "-w") as watch:
        watch.wait_for("Data from ")
        api.fail(SILENCE)
        for seconds, shown in ((11, "11s ago"), (1, "12s ago")):
            watch.time.now += seconds
            watch.wait_for(f"({shown})")
        assert re.search(r"\x1b\[1;31mSTALE: [^\x1b]*\(12s ago\)", watch.text())


def test_a_watch_reads_no_list_twice_and_shows_changes_until_it_is_interrupted(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = len(api.requests)
    with Watch(monkeypatch, StringIO(), "nodes", "-w") as watch:
        watch.wait_for("NODE/CARD")
        watched = {"watch /api/v1/nodes", "watch /api/v1/pods", "watch /api/v1/events"}
        eventually(lambda: watched <= {*requests_since(api, since)}, "watches of all collections")
        lists = [each for each in requests_since(api, since) if each.startswith("list ")]
        api.apply(make_node("watched", 1))
        watch.wait_for("watched")
        with ApiClient(api.url) as admin:
            admin.delete("/api/v1/nodes/watched")
    assert watch.code == 130
    kinds = ("events", "events", "nodes", "pods")
    assert sorted(lists) == [f"list /api/v1/{each}" for each in kinds]
