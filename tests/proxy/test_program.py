"""The program: its command line, its pages, its log, its end."""

import json
import logging
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.__main__ import main
from proxy.program import HUNG_SECONDS
from simulator.kubelet.errors import PluginCallFailed
from tests.common.serving.through import fetch
from tests.proxy.plugin import RESOURCE, WITHIN, Plugin
from tests.proxy.site import PATIENCE, Site, wait

_FIELDS = {"time", "level", "logger", "pid", "message"}


@contextmanager
def _proxy(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    (folder / "k").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "proxy", "--kubelet-dir", folder / "k", "--plugin-dir",
         folder / "p", "--http-host", "127.0.0.1", "--http-port", "0"],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_process_serves_pages_logs_json_and_ends_at_sigterm(short_folder: Path) -> None:
    with _proxy(short_folder) as process:
        assert process.stderr is not None
        port = json.loads(process.stderr.readline())["http_port"]
        wait("it listens", (short_folder / "p" / "kubelet.sock").exists)
        assert fetch(port, "/healthz") == (200, "ok\n")
        assert fetch(port, "/nothing") == (404, "not found\n")
        running = Site(short_folder)  # the proxy is the process
        made = Plugin(running.plugin_dir, "a").register()
        missing = f"{RESOURCE} is not registered with the kubelet: no kubelet is running\n"
        assert fetch(port, "/readyz") == (503, missing)
        running.kubelet.start()
        running.wait_known()
        wait("it is ready", lambda: fetch(port, "/readyz") == (200, "ok\n"))
        line = f'gpu_turnstile_proxy_kubelet_registered{{resource="{RESOURCE}"}} 1.0'
        assert line in fetch(port, "/metrics")[1]
        running.kubelet.kill()
        wait("the kubelet's end is noticed", lambda: fetch(port, "/readyz")[0] == 503)
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(each) for each in process.stderr if each.startswith("{")]
        assert process.wait(WITHIN) == 0
        made.end()

    # Between bind and listen a kubelet refuses registrations.
    lines = [each for each in lines if each["message"] != "registration failed"]
    assert [(each["message"], each.get("resource")) for each in lines] == [
        ("plugin connected", RESOURCE),
        ("registered", RESOURCE),
        ("stopped", None),
    ]
    assert all(each.keys() >= _FIELDS for each in lines)


def test_metrics_and_log_show_connections_and_waiting_calls(
    running: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "proxy")
    first = running.serve("a")
    registered = running.metrics()
    first.end()
    (call,) = running.begin_waiting()
    waiting = running.metrics()
    running.clock.advance(PATIENCE)
    with pytest.raises(PluginCallFailed):
        call.result(WITHIN)
    given_up = running.metrics()
    running.serve("b")
    assert (registered["connected_plugins"], registered["kubelet_registered"]) == (1, 1)
    assert (waiting["connected_plugins"], waiting["waiting_calls"]) == (0, 1)
    assert given_up["longest_wait_seconds"] == pytest.approx(PATIENCE, rel=0.01)
    del given_up["longest_wait_seconds"]
    assert given_up == {
        "connected_plugins": 0,
        "waiting_calls": 0,
        "kubelet_registered": 1,
        "given_up": 1,
        "asked_again_calls_total": 0,
        "unanswered_calls_total": 1,
    }
    assert [each for each in caplog.messages if each != "registration failed"] == [
        "plugin connected",
        "registered",
        "plugin disconnected",
        "calls wait for a plugin",
        "devices given up",
        "plugin connected",
    ]


def test_both_folders_may_not_be_one(tmp_path: Path) -> None:
    folders = ["--kubelet-dir", str(tmp_path), "--plugin-dir", f"{tmp_path}/."]
    found = CliRunner().invoke(main, [*folders, "--http-host", "127.0.0.1", "--http-port", "0"])
    rule = "must not be the kubelet's own folder"
    assert found.exit_code == 2
    assert found.stderr == f"error: plugin-dir: Invalid value: {tmp_path}: {rule}\n"


@pytest.mark.parametrize("patience", ["0", "26"])
def test_patience_has_bounds(patience: str) -> None:
    found = CliRunner().invoke(main, ["--patience", patience])
    assert found.exit_code == 2
    assert "Invalid value for '--patience'" in found.output


@pytest.mark.slow
def test_a_hung_event_loop_ends_the_process(short_folder: Path) -> None:
    (short_folder / "k").mkdir()
    hang = (
        "import asyncio, proxy.__main__ as m, proxy.program as p, time\n"
        "m.HUNG_SECONDS = 0.5\n"
        "beat = p.Proxy._beat\n"
        "async def hang(self, on_beat):\n"
        "    on_beat()\n"
        "    time.sleep(60)\n"
        "p.Proxy._beat = hang\n"
        f"m.main(['--kubelet-dir', '{short_folder}/k', '--plugin-dir', '{short_folder}/p',"
        " '--http-port', '0', '--http-host', '127.0.0.1'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", hang], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert found.returncode == 1
    assert "Timeout (0:00:00.500000)!" in found.stderr
    assert "in hang" in found.stderr


def test_liveness_is_lost_if_the_event_loop_hangs(running: Site) -> None:
    assert running.proxy.liveness_problem() == ""
    hung, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hung.set()
        go_on.wait()

    running._loop.call_soon_threadsafe(hang)
    assert hung.wait(WITHIN)
    running.clock.advance(HUNG_SECONDS + 1)
    assert re.fullmatch(r"the event loop hangs for \d+ s", running.proxy.liveness_problem())
    go_on.set()
    wait("it beats again", lambda: not running.proxy.liveness_problem())


def test_a_defect_of_a_task_ends_the_proxy_in_order(running: Site) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    running._loop.call_soon_threadsafe(lambda: running.proxy._spawn(fail()))
    wait("it ends", lambda: not running.proxy_runs)
    assert repr(running.defect) == "RuntimeError('a defect')"
    running.defect = None
