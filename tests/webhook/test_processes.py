"""``python -m webhook`` as it runs: gunicorn's processes, signals and files."""

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.issue import issue
from certs.names import parse_subject
from contract.stamps import OrderStamp
from tests.common.serving.in_process import DEADLINE, JSON
from tests.webhook.serving import Json, Running, free_port, running
from webhook.admission.reviews import LARGEST_BODY

pytestmark = pytest.mark.slow


def serving(certificates: Path, folder: Path) -> AbstractContextManager[Running]:
    return running(Running, certificates, folder / "log", "webhook", "--drain-delay", "0.2")


def test_it_serves_ipv4_and_ipv6_until_sigterm(certificates: Path, tmp_path: Path) -> None:
    """Nothing is left behind: no port, no error in the log."""
    with serving(certificates, tmp_path) as webhook:
        for address in ("127.0.0.1", "::1"):
            with (
                socket.create_connection((address, webhook.port), timeout=DEADLINE) as plain,
                webhook.tls().wrap_socket(plain, server_hostname="localhost") as client,
            ):
                client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        (line,) = (each for each in webhook.messages() if each["message"] == "listening")
        assert line["addresses"] == [f"https://[::]:{webhook.port}"]
        with webhook.connect() as idle:
            webhook.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(ConnectionResetError):
                assert idle.recv(1) == b""
        assert webhook.process.wait(DEADLINE) == 0
        assert all("exception" not in each for each in webhook.messages())
        with pytest.raises(OSError, match="refused"):
            webhook.connect()


def kill_worker(webhook: Running) -> None:
    """Kill the worker, and wait until gunicorn has noticed."""
    os.kill(webhook.worker(), signal.SIGKILL)
    webhook.wait(lambda: any("SIGKILL" in each["message"] for each in webhook.messages()))


def test_a_killed_worker_is_started_again_and_writes_other_stamps(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    def stamp(webhook: Running) -> OrderStamp:
        status, text = webhook.post(json.dumps(review))
        assert status == 200
        patch = json.loads(base64.b64decode(json.loads(text)["response"]["patch"]))
        written = {each["path"]: each["value"] for each in patch}
        return OrderStamp.decode(written["/metadata/annotations/tencent.com~1admission-order"])

    with serving(certificates, tmp_path) as webhook:
        before = stamp(webhook)
        kill_worker(webhook)
        after = stamp(webhook)  # the port stays open: clients wait meanwhile
        assert (before.writer != after.writer, before < after) == (True, True)


def test_a_new_certificate_is_served_without_losing_a_connection_or_a_review(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    renewed = tmp_path / "renewed"
    _write(renewed, 1)
    with serving(renewed, tmp_path) as webhook, contextlib.closing(webhook.http()) as kept:
        (tmp_path / "broken").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n")
        (tmp_path / "broken").replace(renewed / "tls.crt")  # no half of it is ever read
        webhook.wait(lambda: _reloads(webhook, "refused") == 1)
        # A worker that starts now cannot read a pair, and serves the earlier one.
        kill_worker(webhook)
        kept.request("POST", "/mutate/pods", body, JSON)
        assert kept.getresponse().read()
        sock = kept.sock
        first = webhook.metrics()["certificate_expiry_timestamp_seconds"]
        _write(renewed, 3)
        webhook.wait(lambda: _reloads(webhook, "loaded") == 1)
        assert webhook.metrics()["certificate_expiry_timestamp_seconds"] > first + 86400
        kept.request("POST", "/mutate/pods", body, JSON)
        assert kept.getresponse().status == 200
        assert kept.sock is sock
    messages = [each["message"] for each in webhook.messages()]
    assert "certificate refused, the previous one is still served" in messages
    assert messages.count("certificate loaded") == 1


def _write(directory: Path, days: int) -> None:
    issued = issue(parse_subject(["localhost"], [], days), now=datetime.now(UTC))
    issued.write(directory, force=True)


def _reloads(webhook: Running, result: str) -> float:
    """Count; until the new certificate is served it is not trusted: its CA is new as well."""
    with contextlib.suppress(ssl.SSLCertVerificationError):
        return webhook.metrics()[f'certificate_reloads_total{{result="{result}"}}']
    return 0


def test_a_separate_gunicorn_serves_it(certificates: Path, tmp_path: Path, review: Json) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [sys.executable, "-m", "gunicorn", "-k", "asgi", "--bind", f"127.0.0.1:{port}"]
    command += ["--certfile", str(certificates / "tls.crt"), "--keep-alive", "120"]
    command += ["--keyfile", str(certificates / "tls.key"), "--no-control-socket"]
    environment = {**os.environ, "GPU_TURNSTILE_WEBHOOK_SCHEDULER_NAME": "sharing"}
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            [*command, "webhook.__main__:application()"], stderr=stderr, env=environment
        ) as process,
    ):
        webhook = Running(process, port, certificates, log)
        try:
            webhook.wait_until_ready()
            status, text = webhook.post(json.dumps(review), chunked=True)
            assert status == 200
            assert "schedulerName" in str(base64.b64decode(json.loads(text)["response"]["patch"]))
            assert webhook.post(b" " * (LARGEST_BODY + 1))[0] == 413
        finally:
            process.terminate()
            process.wait(DEADLINE)
