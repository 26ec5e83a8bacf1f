"""The real thing: ``python -m webhook`` in processes of its own, spoken to over TLS."""

import base64
import contextlib
import json
import os
import re
import signal
import ssl
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from certs import store
from certs.issue import issue
from certs.names import parse_subject
from contract.stamps import OrderStamp
from tests.webhook.serving import DEADLINE, JSON, Json, Running, running
from webhook.admission.reviews import LARGEST_BODY


@pytest.fixture(scope="module")
def webhook(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(certificates, tmp_path_factory.mktemp("webhook")) as found:
        yield found


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


def test_every_stamp_of_two_workers_is_unique(webhook: Running, review: Json) -> None:
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


@pytest.mark.parametrize("expect", [b"Expect: 100-continue\r\n" * 2, b"Expect: \t100-continue\r\n"])
def test_an_odd_promise_to_wait_never_ends_in_500(webhook: Running, expect: bytes) -> None:
    head = b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    with webhook.connect() as connection:
        connection.sendall(head + expect + b"\r\n{}")
        answer = b""
        while b"415" not in answer:
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece


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
    with running(certificates, tmp_path) as webhook:
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
    with running(certificates, tmp_path) as webhook, webhook.connect() as connection:
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
        assert b"Connection: close" in answer
        assert webhook.process.wait(DEADLINE) == 0


def _wait_until_signalled(webhook: Running) -> None:
    """Wait until the idle worker has gone: by then both have been told."""
    webhook.wait(lambda: any("Worker exiting" in each["message"] for each in webhook.messages()))


def test_idle_connections_do_not_delay_the_end(certificates: Path, tmp_path: Path) -> None:
    with running(certificates, tmp_path) as webhook, contextlib.ExitStack() as open_ones:
        for _ in range(4):
            connection = webhook.http()
            open_ones.callback(connection.close)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
        open_ones.enter_context(webhook.connect())  # has not sent anything yet
        open_ones.enter_context(webhook.plain())  # not even its part of the handshake
        began = time.monotonic()
        webhook.process.terminate()
        assert webhook.process.wait(DEADLINE) == 0
        assert time.monotonic() - began < 10


def test_readiness_goes_first_and_who_still_comes_is_answered(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    with running(certificates, tmp_path, "--drain-delay", "5") as webhook:
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
        assert webhook.process.wait(DEADLINE) == 0


def test_a_killed_worker_costs_no_review_but_those_on_its_sockets(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    with running(certificates, tmp_path) as webhook:
        stop = threading.Event()

        def load(_: int) -> tuple[int, int]:
            done = failed = 0
            while not stop.is_set():
                try:
                    assert webhook.post(body)[0] == 200
                    done += 1
                except OSError:
                    failed += 1
            return done, failed

        with ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, number) for number in range(4)]
            try:
                webhook.wait(lambda: len(webhook.workers()) == 2)
                one, other = webhook.workers()
                os.kill(one, signal.SIGKILL)
                webhook.wait(lambda: len(webhook.workers()) == 3)
                os.kill(other, signal.SIGKILL)
                webhook.wait(lambda: len(webhook.workers()) == 4)
            finally:
                stop.set()
            outcomes = [each.result(DEADLINE) for each in loads]
        failures = [failed for _, failed in outcomes]
        assert sum(failures) <= 2 * 4  # two workers, four sockets at most on each
        assert all(done for done, _ in outcomes)
        reviewed = sum(
            value for name, value in webhook.metrics().items() if name.startswith("reviews_total")
        )
        assert reviewed >= sum(done for done, _ in outcomes)  # counts of the dead are kept


def test_metrics_are_those_of_all_workers(webhook: Running, review: Json) -> None:
    def reviews() -> float:
        return webhook.metrics().get(
            'reviews_total{route="/mutate/pods",rule="",verdict="patched"}', 0
        )

    before = reviews()
    body = json.dumps(review)
    for _ in range(10):
        assert webhook.post(body)[0] == 200
    assert {reviews() for _ in range(10)} == {before + 10}
    found = webhook.metrics()
    assert found["certificate_expiry_timestamp_seconds"] > time.time()
    assert found["requests_in_flight"] == 1  # this very one
    assert any(name.startswith("build_info") for name in found)


def test_the_directory_of_the_metrics_goes_with_the_server(
    certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Path("/dev/shm")
    prefix = "gpu-turnstile-webhook-"

    def directories() -> set[Path]:
        return {each for each in memory.iterdir() if each.name.startswith(prefix)}

    before = directories()
    with running(certificates, tmp_path) as webhook:
        made = {
            each
            for each in directories() - before
            if each.is_dir() and _is_used_by(webhook.workers(), each)
        }
        assert len(made) == 1
        assert all(each.stat().st_mode & 0o777 == 0o700 for each in made)
        webhook.process.terminate()
        assert webhook.process.wait(DEADLINE) == 0
    assert not made & directories()


def _is_used_by(workers: set[int], directory: Path) -> bool:
    return any(str(directory) in Path(f"/proc/{worker}/maps").read_text() for worker in workers)


def test_a_new_certificate_is_served_without_losing_a_connection_or_a_review(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    serving = tmp_path / "serving"
    _write(serving, 1)
    with running(serving, tmp_path) as webhook, contextlib.closing(webhook.http()) as kept:
        webhook.wait(lambda: len(webhook.workers()) == 2)
        (serving / "tls.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n")
        webhook.wait(lambda: webhook.metrics()['certificate_reloads_total{result="refused"}'] == 2)
        # Who starts now cannot read a pair, and serves what the others serve.
        os.kill(min(webhook.workers()), signal.SIGKILL)
        webhook.wait(lambda: len(webhook.workers()) == 3)
        kept.request("POST", "/mutate/pods", body, JSON)
        assert kept.getresponse().read()
        sock = kept.sock
        first = webhook.metrics()["certificate_expiry_timestamp_seconds"]
        _write(serving, 3)
        webhook.wait(lambda: _is_served(webhook))
        webhook.wait(lambda: _loads(webhook) == 2)
        assert webhook.metrics()["certificate_expiry_timestamp_seconds"] > first + 86400
        kept.request("POST", "/mutate/pods", body, JSON)
        assert kept.getresponse().status == 200
        assert kept.sock is sock
    messages = [each["message"] for each in webhook.messages()]
    assert messages.count("certificate refused, the one before serves on") >= 2
    assert messages.count("certificate loaded") == 2


def _write(directory: Path, days: int) -> None:
    issued = issue(parse_subject(["localhost"], [], days), now=datetime.now(UTC))
    store.write(directory, issued, force=True)


def _loads(webhook: Running) -> float:
    """Count workers that have loaded the new files; others are not trusted any more."""
    with contextlib.suppress(ssl.SSLCertVerificationError):
        return webhook.metrics()['certificate_reloads_total{result="loaded"}']
    return 0


def _is_served(webhook: Running) -> bool:
    """Return whether the new certificate is served: its CA is new as well."""
    with contextlib.suppress(ssl.SSLCertVerificationError), webhook.connect():
        return True
    return False


def test_reviews_need_the_certificate_of_the_client_ca_and_probes_do_not(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "clients.crt")
    with running(certificates, tmp_path, "--client-ca", str(tmp_path / "clients.crt")) as webhook:
        assert webhook.post(body) == (
            403,
            "client certificate: Required value: of the CA in --client-ca\n",
        )
        known = webhook.tls()
        authority.issue_cert("apiserver").configure_cert(known)
        assert webhook.post(body, context=known)[0] == 200
        unknown = webhook.tls()
        stranger.issue_cert("apiserver").configure_cert(unknown)
        with pytest.raises(OSError, match=r"(?i)alert|reset|certificate"):
            webhook.post(body, context=unknown)


def test_clients_that_never_finish_do_not_keep_others_waiting(
    certificates: Path, tmp_path: Path, review: Json
) -> None:
    body = json.dumps(review)
    with (
        running(certificates, tmp_path, "--connections", "40") as webhook,
        contextlib.ExitStack() as slow,
    ):
        for number in range(300):  # more than there is room for
            if number % 3 == 0:
                slow.enter_context(webhook.plain())
                continue
            with contextlib.suppress(OSError):
                connection = slow.enter_context(webhook.connect())
                sent = b"POST /mutate/pods HTTP/1.1\r\nContent-Le"
                connection.sendall(sent if number % 3 == 1 else b"G")
        for _ in range(20):
            began = time.monotonic()
            assert webhook.post(body)[0] == 200
            assert time.monotonic() - began < 5
        found = webhook.metrics()
        assert found["connections"] <= 80
        assert sum(value for name, value in found.items() if "no-room" in name) > 100
        assert len(webhook.workers()) == 2


def test_plain_http_is_not_answered_and_counted(webhook: Running) -> None:
    name = 'connections_ended_total{reason="tls",state="handshake"}'
    before = webhook.metrics().get(name, 0)
    with webhook.plain() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " not in connection.recv(65536)
    webhook.wait(lambda: webhook.metrics()[name] == before + 1)


def test_two_requests_in_one_piece_get_two_answers(webhook: Running) -> None:
    with webhook.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        answer = b""
        while answer.count(b"ok\n") < 2:
            piece = connection.recv(65536)
            assert piece
            answer += piece
    assert answer.count(b"HTTP/1.1 200 ") == 2


def test_a_review_is_answered_byte_by_byte_too(webhook: Running, review: Json) -> None:
    body = json.dumps(review).encode()
    request = (
        b"POST /mutate/pods HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    with webhook.connect() as connection:
        for at in range(0, len(request), 7):
            connection.sendall(request[at : at + 7])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
