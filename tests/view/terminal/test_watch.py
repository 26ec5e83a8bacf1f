"""``kubectl gpu`` with ``--watch``, and its commands ``cordon`` and ``uncordon``."""

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from common.apiserver.client import Client
from contract.cordon import describe_unknown
from contract.names import Names
from simulator.api.faults import SILENCE
from simulator.api.server import ApiServer, kubeconfig_for
from simulator.client import ApiClient
from tests.agent.fakes import eventually
from tests.placement.cluster.builders import bare_node, make_node
from tests.view.conftest import ManualTime, requests_since
from tests.view.terminal.conftest import Gpu
from tests.view.terminal.test_pages import Terminal
from view.terminal import commands
from view.terminal.context import CommandContext
from view.terminal.cordoning import change_cordon


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


Watching = Callable[..., Watch]


@pytest.fixture
def watching(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    monkeypatch.delenv("NO_COLOR", raising=False)
    return partial(Watch, monkeypatch)


def test_a_watch_shows_that_it_is_stale_and_current_again(
    api: ApiServer, watching: Watching
) -> None:
    with watching(StringIO(), "pods", "-w", "--no-color") as watch:
        watch.wait_for("Data from ")
        api.fail(SILENCE)
        watch.time.now += 11
        stale = "(11s ago): the API server is unreachable (no response in time)"
        watch.wait_for(stale)
        assert "\nSTALE: data from " in watch.text()
        pages = watch.text().count("Data from ")
        api.restore()
        eventually(lambda: watch.text().count("Data from ") > pages, "a current page")


def test_a_json_watch_shows_that_it_is_stale(api: ApiServer, watching: Watching) -> None:
    with watching(StringIO(), "nodes", "-w", "-o=json") as watch:
        watch.wait_for('"stale": ""')
        api.fail(SILENCE)
        watch.time.now += 11
        watch.wait_for('"stale": "the API server is unreachable')


def test_a_stale_page_is_colored_in_a_terminal_and_its_age_increases(
    api: ApiServer, watching: Watching
) -> None:
    with watching(Terminal(), "nodes", "n1", "-w") as watch:
        watch.wait_for("Data from ")
        api.fail(SILENCE)
        for seconds, shown in ((11, "11s ago"), (1, "12s ago")):
            watch.time.now += seconds
            watch.wait_for(f"({shown})")
        assert re.search(r"\x1b\[1;31mSTALE: [^\x1b]*\(12s ago\)", watch.text())


def test_a_watch_reads_no_list_twice_and_shows_changes_until_it_is_interrupted(
    api: ApiServer, watching: Watching
) -> None:
    since = len(api.requests)
    with watching(StringIO(), "nodes", "-w") as watch:
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


# --- cordon and uncordon ------------------------------------------------------------------


NAMES = Names()
NODE = "/api/v1/nodes/n1"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of a server of one's own, whose first node has two cards."""
    with ApiServer() as api:
        api.apply(make_node("n1", 2), bare_node("n2"))
        path = tmp_path / "config"
        path.write_text(kubeconfig_for(api.url))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield Client(path, user_agent="test")


def _cordoned(client: Client) -> str | None:
    annotations = client.call("GET", NODE, timeout=10)["metadata"]["annotations"]
    found: str | None = annotations.get(NAMES.gpu_cordoned)
    return found


def test_cards_are_cordoned_by_index_or_uuid_and_uncordoned_again(
    gpu_without_cluster: Gpu, own: Client
) -> None:
    assert gpu_without_cluster("cordon", "n1", "1").out == "node/n1 card 1 (GPU-n1-1) cordoned\n"
    assert _cordoned(own) == "GPU-n1-1"
    assert gpu_without_cluster("cordon", "n1", "GPU-n1-0", "1").out == (
        "node/n1 card 0 (GPU-n1-0) cordoned\nnode/n1 card 1 (GPU-n1-1) already cordoned\n"
    )
    assert _cordoned(own) == "GPU-n1-0,GPU-n1-1"
    shown = gpu_without_cluster("nodes", "n1").out
    assert shown.count("Cordoned") == 2
    assert gpu_without_cluster("uncordon", "n1", "0", "1").code == 0
    assert _cordoned(own) is None
    assert gpu_without_cluster("uncordon", "n1", "0").out == (
        "node/n1 card 0 (GPU-n1-0) already uncordoned\n"
    )


def test_what_a_cordon_does_not_name_is_kept_reported_and_removed_by_its_name(
    gpu_without_cluster: Gpu, own: Client
) -> None:
    own.call("PATCH", NODE, {"metadata": {"annotations": {NAMES.gpu_cordoned: "A;B"}}}, timeout=10)
    result = gpu_without_cluster("cordon", "n1", "gpu-N1-1")
    assert result.out == "node/n1 card 1 (GPU-n1-1) cordoned\n"
    advice = "To remove it: kubectl gpu uncordon n1 'A;B'"
    assert result.err == f"Warning: {describe_unknown(['A;B'], NAMES)}. {advice}\n"
    assert _cordoned(own) == "A;B,GPU-n1-1"
    shown = " ".join(gpu_without_cluster("nodes", "n1").out.split())
    assert describe_unknown(["A;B"], NAMES) in shown
    removed = gpu_without_cluster("uncordon", "n1", "A;B")
    assert (removed.out, removed.err) == (
        'node/n1 entry "A;B", which is no card, removed\n',
        "",
    )
    assert _cordoned(own) == "GPU-n1-1"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("cordon n9 0", 'Error from server (NotFound): nodes "n9" not found\n'),
        ("cordon n2 0", "error: node n2: no agent has written its inventory of cards\n"),
        ("cordon n1 7", "error: node n1: no card '7'; its cards: 0 (GPU-n1-0), 1 (GPU-n1-1)\n"),
    ],
)
def test_a_missing_node_or_card_is_named(
    gpu_without_cluster: Gpu, own: Client, arguments: str, error: str
) -> None:
    result = gpu_without_cluster(*arguments.split())
    assert (result.code, result.err) == (1, error)


def test_a_concurrent_change_is_kept(own: Client) -> None:
    """Somebody else cordons a card between reading and writing."""
    others = [["0"]]

    def call(method: str, *more: Any, **options: Any) -> Any:
        if method == "PATCH" and others:
            change_cordon(own, NAMES, "n1", others.pop(), cordon=True)
        return own.call(method, *more, **options)

    client: Any = SimpleNamespace(find=own.find, call=call)
    change_cordon(client, NAMES, "n1", ["1"], cordon=True)
    assert _cordoned(own) == "GPU-n1-0,GPU-n1-1"


def test_a_rejected_change_is_an_error(api: ApiServer, gpu: Gpu) -> None:
    api.deny("patch /api/v1/nodes/n1")
    result = gpu("cordon", "n1", "1")
    why = 'User "ana" cannot patch /api/v1/nodes/n1'
    assert (result.code, result.err) == (1, f"Error from server (Forbidden): {why}\n")
