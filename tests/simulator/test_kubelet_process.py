"""The kubelet as a process: killed at any moment, started again on the same directories."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from simulator.kubelet.checkpoint import CheckpointFile
from tests.simulator.kubelet_helpers import CORE, FakePlugin, wait_for

_RUN = (
    "import sys; from pathlib import Path; from simulator.kubelet.process import run_kubelet; "
    "d = Path(sys.argv[2]); "
    "run_kubelet(node_name='n1', server=sys.argv[1], root_dir=d / 'root', plugin_dir=d / 'dp', "
    "pod_resources_socket=d / 'pr.sock', trace=d / 't.jsonl', plugin_wait_s=20.0)"
)


class _Api(BaseHTTPRequestHandler):
    """Answers lists with the pods of the test, watches with 410, and swallows the rest."""

    pods: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            self._answer(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return
        metadata = {"resourceVersion": "1"}
        self._answer(json.dumps({"metadata": metadata, "items": self.pods}).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"{}")

    do_PATCH = do_DELETE = do_POST  # noqa: N815 - the library's names

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def _answer(self, body: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the kubelet may be killed meanwhile
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[str]:
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join(5)


@contextmanager
def process(server: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _RUN, server, str(directory)]) as running:
        try:
            yield running
        finally:
            running.kill()


def lines(directory: Path, event: str) -> list[dict[str, Any]]:
    path = directory / "t.jsonl"
    if not path.exists():
        return []
    read = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if "\n" in line]
    return [each for each in read if each["event"] == event]


def a_pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {CORE: "2"}}}]},
    }


def test_a_killed_process_leaves_what_the_next_one_needs(server: str) -> None:
    _Api.pods = []
    with tempfile.TemporaryDirectory(prefix="kl") as name:
        directory = Path(name)
        plugin = FakePlugin(directory / "dp", CORE)
        for lives, pod in enumerate(("p", "q"), 1):
            with process(server, directory) as running:
                _wait_lines(directory, "kubelet", lives)
                wait_for(lambda: _registers(plugin), what="registration")
                wait_for(lambda: _advertised(directory, plugin), what="devices")
                _Api.pods = [*_Api.pods, a_pod(pod)]
                _wait_lines(directory, "start", lives)
                if pod == "p":
                    running.kill()
                else:
                    running.terminate()
                    assert running.wait(10) == 0
            plugin.stop()
        given = [set(call.ids) for call in plugin.of("Allocate")]
        assert len(given) == 2  # what the first life gave is not asked for again
        assert not given[0] & given[1]
        assert [each["pod"] for each in lines(directory, "start")] == ["p", "q"]
        assert [each["seq"] for each in lines(directory, "kubelet")] == [0, 5]


def _wait_lines(directory: Path, event: str, count: int) -> None:
    wait_for(lambda: len(lines(directory, event)) == count, what=event)


def _advertised(directory: Path, plugin: FakePlugin) -> bool:
    """Whether the kubelet has written down the plugin's devices."""
    loaded = CheckpointFile(directory / "dp").load()
    return loaded is not None and loaded.registered.get(CORE) == tuple(plugin.ids)


def _registers(plugin: FakePlugin) -> bool:
    """Serve and register as a plugin does that starts beside the kubelet.

    The kubelet may only now be clearing the directory, the socket just made included.
    """
    plugin.stop()
    if not (plugin.directory / "kubelet.sock").exists():
        return False
    try:
        plugin.serve().register()
    except grpc.RpcError:
        return False
    return (plugin.directory / plugin.endpoint).exists()
