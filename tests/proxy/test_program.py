"""The program as a process: its command line, its pages, its log, its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.__main__ import main
from simulator.kubelet.errors import PluginCallFailed
from tests.proxy.site import RESOURCE, Site, wait

pytestmark = pytest.mark.slow

_FIELDS = {"time", "level", "logger", "pid", "message"}


@contextmanager
def _proxy(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    (folder / "k").mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-m", "proxy", "--kubelet-dir", folder / "k", "--plugin-dir",
         folder / "p", "--http-host", "127.0.0.1", *options],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_its_endpoints_and_log_show_what_happens(folder: Path) -> None:
    with _proxy(folder, "--http-port", "0", "--patience", "0.5") as process:
        assert process.stderr is not None
        port = json.loads(process.stderr.readline())["http_port"]
        wait("it listens", (folder / "p" / "kubelet.sock").exists)
        assert _get(port, "/healthz") == (200, "ok\n")
        assert _get(port, "/nothing") == (404, "not found\n")
        running = Site(folder)
        made = running.plugin().wait_registered()
        assert _get(port, "/readyz") == (
            503,
            f"{RESOURCE} is not registered with the kubelet: no kubelet is running\n",
        )
        running.kubelet.start()
        wait("the devices are known", lambda: running.healthy == 4)
        wait("it is ready", lambda: _get(port, "/readyz") == (200, "ok\n"))
        made.end(signal.SIGKILL)
        with pytest.raises(PluginCallFailed):
            running.allocate("d0")
        text = _get(port, "/metrics")[1]
        again = running.plugin().wait_registered()
        wait("the devices are healthy", lambda: running.healthy == 4)
        process.send_signal(signal.SIGTERM)
        lines = [json.loads(each) for each in process.stderr if each.startswith("{")]
        assert process.wait(10) == 0
        again.clean_up()
        made.clean_up()
        running.kubelet.kill()

    labels = f'{{resource="{RESOURCE}"}}'
    assert f"gpu_turnstile_proxy_given_up{labels} 1.0" in text
    assert f"gpu_turnstile_proxy_connected_plugins{labels} 0.0" in text
    assert f"gpu_turnstile_proxy_kubelet_registered{labels} 1.0" in text
    assert f"gpu_turnstile_proxy_waiting_calls{labels} 0.0" in text
    found = re.search(rf"gpu_turnstile_proxy_longest_wait_seconds{re.escape(labels)} (\S+)", text)
    assert found is not None
    assert 0.3 < float(found[1]) < 5
    # Between bind and listen a kubelet refuses whoever registers.
    lines = [each for each in lines if each["message"] != "registration failed"]
    assert [each["message"] for each in lines] == [
        "plugin connected",
        "registered",
        "plugin disconnected",
        "calls wait for a plugin",
        "devices given up",
        "plugin connected",
        *["stopped"],
    ]
    for each in lines:
        assert each.keys() >= _FIELDS
        assert each["message"] == "stopped" or each["resource"] == RESOURCE


def test_a_port_in_use_is_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with _proxy(folder, "--http-port", str(port)) as process:
            _, errors = process.communicate(timeout=20)

    assert process.returncode == 2
    assert errors.startswith(f"error: http-port: cannot listen on 127.0.0.1:{port}: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("patience", ["0", "26"])
def test_patience_stays_below_what_prestart_has(patience: str) -> None:
    found = CliRunner().invoke(main, ["--patience", patience])

    assert found.exit_code == 2
    assert "Invalid value for '--patience'" in found.output


def test_a_loop_that_stands_still_ends_the_process(folder: Path) -> None:
    (folder / "k").mkdir()
    hang = (
        "import asyncio, proxy.__main__ as m, proxy.program as p, time\n"
        "m.HUNG_SECONDS = 0.5\n"
        "beat = p.Proxy._beat\n"
        "async def hang(self, on_beat):\n"
        "    on_beat()\n"
        "    time.sleep(60)\n"
        "p.Proxy._beat = hang\n"
        f"m.main(['--kubelet-dir', '{folder}/k', '--plugin-dir', '{folder}/p', '--http-port', '0',"
        " '--http-host', '127.0.0.1'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", hang], capture_output=True, text=True, timeout=30, check=False
    )

    assert found.returncode == 1
    assert "Timeout (0:00:00.500000)!" in found.stderr
    assert "in hang" in found.stderr


def test_a_defect_ends_the_process_in_order(running: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    running._loop.call_soon_threadsafe(lambda: running.proxy._spawn(fail()))
    wait("it ends", lambda: not running._thread.is_alive())

    assert repr(running.defect) == "RuntimeError('a defect')"
    running.defect = None
