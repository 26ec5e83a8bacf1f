"""The real thing: ``python -m webhook`` in processes of its own, spoken to over TLS."""

import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from certs.issue import issue
from certs.names import parse_subject
from contract.stamps import OrderStamp
from tests.webhook.serving import DEADLINE, JSON, Json, Running, free_port, running
from webhook.admission.reviews import LARGEST_BODY

JSON_HEAD = b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def webhook(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(certificates, tmp_path_factory.mktemp("webhook")) as found:
        yield found


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_by_default_it_serves_ipv4_and_ipv6(webhook: Running, address: str) -> None:
    with (
        socket.create_connection((address, webhook.port), timeout=DEADLINE) as plain,
        webhook.tls().wrap_socket(plain, server_hostname="localhost") as client,
    ):
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_tls_1_1_is_refused(webhook: Running) -> None:
    context = webhook.tls()
    context.set_ciphers("ALL:@SECLEVEL=0")  # or our own side would refuse first
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError, match=r"EOF|reset"):  # by the other side
        webhook.connect(context)


def test_shutdown_waits_for_requests_in_progress_and_not_for_idle_connections(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    """Nothing is left behind: no port, no error in the log."""
    body = json.dumps(review).encode()
    head = JSON_HEAD + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(body)
    with running(certificates, tmp_path) as webhook, contextlib.ExitStack() as open_ones:
        idle: list[socket.socket] = []
        for _ in range(4):
            connection = webhook.http()
            open_ones.callback(connection.close)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
            idle.append(connection.sock)
        idle.append(open_ones.enter_context(webhook.connect()))  # has not sent anything yet
        idle.append(open_ones.enter_context(webhook.plain()))  # not even a handshake
        busy = open_ones.enter_context(webhook.connect())
        busy.sendall(head)
        assert busy.recv(4096).startswith(b"HTTP/1.1 100 ")  # so it is being read
        busy.sendall(body[:10])
        webhook.process.send_signal(signal.SIGTERM)
        for each in idle:  # the busy one would be cut off too if this took all of the time there is
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        busy.sendall(body[10:])
        response = b""
        while piece := busy.recv(65536):
            response += piece
        assert response.startswith(b"HTTP/1.1 200 ")
        assert b"Connection: close" in response
        assert webhook.process.wait(DEADLINE) == 0
        assert all("exception" not in each for each in webhook.messages())
        with pytest.raises(OSError, match="refused"):
            webhook.connect()


def test_readiness_ends_first_and_late_requests_are_still_served(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    with running(certificates, tmp_path, "--drain-delay", "10") as webhook:
        with contextlib.closing(webhook.http()) as kept:
            kept.request("GET", "/readyz")
            assert kept.getresponse().read() == b"ok\n"
            webhook.process.terminate()
            webhook.wait(lambda: webhook.get("/readyz")[0] == 503)
            status, text = webhook.post(json.dumps(review))
            assert (status, json.loads(text)["response"]["allowed"]) == (200, True)
            kept.request("POST", "/mutate/pods", json.dumps(review), JSON)
            response = kept.getresponse()
            assert (response.status, response.headers["Connection"]) == (200, "close")
            response.read()
        os.kill(webhook.worker(), signal.SIGQUIT)  # we need not wait for the rest of the delay
        assert webhook.process.wait(DEADLINE) == 0


def test_a_killed_worker_is_started_again_and_writes_other_stamps(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    def stamp(webhook: Running) -> OrderStamp:
        status, text = webhook.post(json.dumps(review))
        assert status == 200
        patch = json.loads(base64.b64decode(json.loads(text)["response"]["patch"]))
        written = {each["path"]: each["value"] for each in patch}
        return OrderStamp.decode(written["/metadata/annotations/tencent.com~1admission-order"])

    with running(certificates, tmp_path) as webhook:
        before = stamp(webhook)
        os.kill(webhook.worker(), signal.SIGKILL)
        after = stamp(webhook)  # the port stays open: who comes meanwhile waits
        assert (before.writer != after.writer, before < after) == (True, True)


def test_what_is_served_can_be_seen(webhook: Running, review: Json) -> None:
    assert webhook.post(json.dumps(review))[0] == 200
    found = webhook.metrics()
    assert found['reviews_total{route="/mutate/pods",rule="",verdict="patched"}'] == 1
    assert found["requests_in_flight"] == 1  # this very one
    assert found["certificate_expiry_timestamp_seconds"] > time.time()
    (line,) = (each for each in webhook.messages() if each["message"] == "listening")
    assert line["addresses"] == [f"https://[::]:{webhook.port}"]


def test_a_new_certificate_is_served_without_losing_a_connection_or_a_review(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    serving = tmp_path / "serving"
    _write(serving, 1)
    with running(serving, tmp_path) as webhook, contextlib.closing(webhook.http()) as kept:
        (tmp_path / "broken").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n")
        (tmp_path / "broken").replace(serving / "tls.crt")  # nobody reads half of it
        webhook.wait(lambda: _reloads(webhook, "refused") == 1)
        # Who starts now cannot read a pair, and serves what was served.
        os.kill(webhook.worker(), signal.SIGKILL)
        kept.request("POST", "/mutate/pods", body, JSON)
        assert kept.getresponse().read()
        sock = kept.sock
        first = webhook.metrics()["certificate_expiry_timestamp_seconds"]
        _write(serving, 3)
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


def test_reviews_need_the_certificate_of_the_client_ca_and_probes_do_not(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.crt")
    with running(certificates, tmp_path, "--client-ca", str(tmp_path / "clients.crt")) as webhook:
        assert webhook.post(body) == (
            403,
            "client certificate: Required value: issued by --client-ca\n",
        )
        known = webhook.tls()
        authority.issue_cert("apiserver").configure_cert(known)
        assert webhook.post(body, context=known)[0] == 200
        unknown = webhook.tls()
        stranger.issue_cert("apiserver").configure_cert(unknown)
        with pytest.raises(OSError, match=r"closed|reset|EOF"):
            webhook.post(body, context=unknown)
        # The client hears of it first.
        webhook.wait(lambda: _reasons(webhook) == ["CERTIFICATE_VERIFY_FAILED"])


def _reasons(webhook: Running) -> list[str]:
    lines = webhook.messages()
    return [each["reason"] for each in lines if each["message"] == "handshake failed"]


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
