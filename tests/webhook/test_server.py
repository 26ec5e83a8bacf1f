"""The real thing: ``python -m webhook`` in processes of its own, spoken to over TLS."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.reviews import LARGEST_BODY
from webhook.server import gunicorn_settings
from webhook.settings import Settings
from webhook.tls import server_context

Json = dict[str, Any]
DEADLINE = 60
JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    """A webhook in processes of its own."""

    process: subprocess.Popen[bytes]
    port: int
    certificates: Path
    log: Path

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)
        try:
            return (context or self.tls()).wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def http(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "localhost", self.port, context=self.tls(), timeout=DEADLINE
        )

    def post(self, body: Any, *, chunked: bool = False) -> tuple[int, str]:
        with contextlib.closing(self.http()) as connection:
            connection.request("POST", "/mutate/pods", body, JSON, encode_chunked=chunked)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE
        while True:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError), contextlib.closing(self.http()) as connection:
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    return
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def messages(self) -> list[Json]:
        return [json.loads(line) for line in self.log.read_text().split("\n")[:-1]]


Start = Callable[[], Running]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(certificates: Path, directory: Path) -> Iterator[Running]:
    port, log = _free_port(), directory / "log"
    arguments = [sys.executable, "-m", "webhook", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--cert", str(certificates / "tls.crt"), "--key", str(certificates / "tls.key")]
    arguments += ["--workers", "2", "--threads", "4"]
    # A home that cannot be written, as with a read-only root file system.
    environment = {**os.environ, "HOME": "/proc/none", "PYTHONWARNINGS": "error"}
    environment.pop("XDG_RUNTIME_DIR", None)
    with (
        log.open("wb") as stderr,
        subprocess.Popen(arguments, stderr=stderr, env=environment) as process,
    ):
        running = Running(process, port, certificates, log)
        try:
            running.wait_until_ready()
            yield running
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def webhook(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with _running(certificates, tmp_path_factory.mktemp("webhook")) as running:
        yield running


def test_the_address_is_logged_and_every_line_is_json(webhook: Running) -> None:
    (line,) = (each for each in webhook.messages() if each["message"] == "listening")
    assert line["addresses"] == [f"https://127.0.0.1:{webhook.port}"]


@pytest.mark.parametrize(
    ("version", "name"),
    [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")],
)
def test_tls_1_2_and_1_3_are_spoken(webhook: Running, version: ssl.TLSVersion, name: str) -> None:
    context = webhook.tls()
    context.minimum_version = context.maximum_version = version
    with webhook.connect(context) as connection:
        assert connection.version() == name


def test_tls_1_1_is_refused(webhook: Running) -> None:
    context = webhook.tls()
    context.set_ciphers("ALL:@SECLEVEL=0")  # or our own side would refuse first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)version|alert|handshake"):
        webhook.connect(context)


def test_plain_http_is_not_answered(webhook: Running) -> None:
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=DEADLINE) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " not in connection.recv(65536)


def test_every_stamp_of_two_workers_with_four_threads_is_unique(
    webhook: Running, review: Json
) -> None:
    body = json.dumps(review)

    def stamps(_: int) -> list[OrderStamp]:
        found = []
        for _ in range(10):  # a connection each, so that both workers get some
            status, text = webhook.post(body)
            assert status == 200
            patch = json.loads(base64.b64decode(json.loads(text)["response"]["patch"]))
            written = {each["path"]: each["value"] for each in patch}
            found.append(
                OrderStamp.decode(written["/metadata/annotations/tencent.com~1admission-order"])
            )
        return found

    with ThreadPoolExecutor(8) as pool:
        found = [stamp for listed in pool.map(stamps, range(8)) for stamp in listed]
    assert len({stamp.encode() for stamp in found}) == 80
    reviewed = [each for each in webhook.messages() if each["message"] == "reviewed"]
    assert len({stamp.writer for stamp in found}) == len({each["pid"] for each in reviewed})


def _chunks(size: int) -> Iterator[bytes]:
    piece = b" " * 65536
    while size > 0:
        yield piece[:size]
        size -= len(piece)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_9_mib_is_413(webhook: Running, chunked: bool) -> None:
    size = 9 * 2**20
    body = _chunks(size) if chunked else b" " * size
    assert webhook.post(body, chunked=chunked) == (413, "body: must be at most 8388608 bytes\n")


def test_a_large_body_of_the_wrong_type_is_told_so(webhook: Running) -> None:
    """The answer comes before the body was of any use, and is still read by plain clients."""
    with contextlib.closing(webhook.http()) as connection:
        connection.request("POST", "/mutate/pods", b" " * 9 * 2**20, {"Content-Type": "text/plain"})
        assert connection.getresponse().status == 415


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_exactly_8_mib_is_read(webhook: Running, chunked: bool, review: Json) -> None:
    body = json.dumps(review).encode().ljust(LARGEST_BODY)
    pieces: Any = (body[at : at + 65536] for at in range(0, len(body), 65536))
    status, text = webhook.post(pieces if chunked else body, chunked=chunked)
    assert status == 200
    assert json.loads(text)["response"]["allowed"] is True


@pytest.mark.parametrize(
    "raw",
    [
        b"zz\r\nnonsense\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"0\r\nbad trailer line\r\n\r\n",
        b"0\r\n" + b"".join(b"T%d: x\r\n" % number for number in range(500)) + b"\r\n",
    ],
)
def test_a_broken_chunked_body_is_400(webhook: Running, raw: bytes) -> None:
    head = (
        b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    with webhook.connect() as connection:
        connection.sendall(head + raw)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /mutate/pods HTTP/1.1\r\nHost: [x\x00\r\nContent-Length: 0\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\nHost: a b/c?d\r\nX: y\x00\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_http_is_4xx(webhook: Running, raw: bytes) -> None:
    with webhook.connect() as connection:
        connection.sendall(raw)
        assert re.match(rb"HTTP/1\.[01] 4\d\d ", connection.recv(65536))


@pytest.mark.parametrize("host", [b"", b"%zz", b"[::1", b"a b", b"x" * 3000, b"\xff\xfe"])
def test_an_odd_host_never_ends_in_500(webhook: Running, host: bytes) -> None:
    with webhook.connect() as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        assert re.match(rb"HTTP/1\.[01] [24]\d\d ", connection.recv(65536))


def test_a_connection_is_kept_for_the_next_review(webhook: Running, review: Json) -> None:
    with contextlib.closing(webhook.http()) as connection:
        connection.connect()
        before = connection.sock
        for _ in range(3):
            connection.request("POST", "/mutate/pods", json.dumps(review), JSON)
            assert connection.getresponse().read()
        assert connection.sock is before


def test_sigterm_ends_it_with_status_0(certificates: Path, tmp_path: Path) -> None:
    with _running(certificates, tmp_path) as webhook:
        webhook.process.terminate()
        assert webhook.process.wait(DEADLINE) == 0
        assert all("exception" not in each for each in webhook.messages())
        with pytest.raises(OSError, match="refused"):
            webhook.connect()


def test_a_request_in_flight_is_answered_after_sigterm(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review).encode()
    head = (
        "POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with _running(certificates, tmp_path) as webhook, webhook.connect() as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")  # so it is being read
        connection.sendall(body[:10])
        webhook.process.send_signal(signal.SIGTERM)
        _wait_until_signalled(webhook)
        connection.sendall(body[10:])
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert webhook.process.wait(DEADLINE) == 0


def _wait_until_signalled(webhook: Running) -> None:
    """Wait until the idle worker has gone: by then both have been told."""
    deadline = time.monotonic() + DEADLINE
    while not any(each["message"].startswith("Worker exiting") for each in webhook.messages()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_setting_of_gunicorn_touches_a_read_only_root(certificates: Path) -> None:
    cert, key = certificates / "tls.crt", certificates / "tls.key"
    settings = Settings("::1", 8443, cert, key, Names(), workers=3, threads=5)
    made = gunicorn_settings(settings, server_context(cert, key))
    assert made["bind"] == "[::1]:8443"
    assert (made["workers"], made["threads"], made["worker_class"]) == (3, 5, "gthread")
    assert made["control_socket_disable"] is True
    assert made["worker_tmp_dir"] in {"/dev/shm", None}
    assert made["keepalive"] > 90
    assert made["graceful_timeout"] < 30
