"""Credentials of a pod's service account, over TLS; retries; messages of errors; large lists."""

import errno
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from common.apiserver import access
from common.apiserver.access import ServerAccess, service_account
from common.apiserver.client import Client
from common.apiserver.errors import CredentialsError, Rejected
from common.apiserver.lists import decode_without_managed_fields
from common.apiserver.rest import Rest, SharedTimeout, Timeout, describe
from common.errors import Unavailable
from common.status import StatusServer, probe
from simulator.api.faults import SILENCE, Fault, Outage
from simulator.api.server import ApiServer, Settings
from tests.agent.builders import patient

SECONDS = 60
"""Timeout of requests that have a response; one without has its own."""


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[ApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ApiServer(Settings(tls=context)) as running:
        yield running


def tokens(server: ApiServer) -> list[str | None]:
    return [each.headers.get("authorization") for each in server.requests]


@pytest.fixture
def account(
    tmp_path: Path, authority: trustme.CA, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    (tmp_path / "token").write_text("first")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path


def test_a_token_is_read_again_when_it_is_due(account: Path, server: ApiServer) -> None:
    """The kubelet writes a new one long before the old one expires."""
    now = [0.0]
    rest = Rest(service_account(clock=lambda: now[0]), user_agent="test")
    (account / "token").write_text("second\n")
    for now[0] in (0, 59, 60):
        rest.request("GET", "/api/v1/pods", timeout=SECONDS).release_conn()
    assert tokens(server) == ["Bearer first", "Bearer first", "Bearer second"]


def test_a_replaced_token_is_read_before_a_401_counts(account: Path, server: ApiServer) -> None:
    rest = Rest(service_account(clock=lambda: 0.0), user_agent="test")
    server.fail(Fault(401))
    (account / "token").write_text("second")
    assert rest.request("GET", "/api/v1/pods", timeout=SECONDS).status == 401
    assert rest.request("GET", "/api/v1/pods", timeout=SECONDS).status == 401
    # Again only with another one.
    assert tokens(server) == [f"Bearer {each}" for each in ("first", "second", "second")]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("\n")])
def test_a_token_that_cannot_be_read_again_is_an_outage_that_passes(
    account: Path, server: ApiServer, spoil: Callable[[Path], object]
) -> None:
    now = [0.0]
    rest = Rest(service_account(clock=lambda: now[0]), user_agent="test")
    now[0] = 60
    spoil(account / "token")
    with pytest.raises(Unavailable, match=r"^API server: getting credentials: the token file "):
        rest.request("GET", "/api/v1/pods", timeout=SECONDS)
    (account / "token").write_text("third")
    assert rest.request("GET", "/api/v1/pods", timeout=SECONDS).status == 200
    assert tokens(server) == ["Bearer third"]


def test_a_server_that_is_not_trusted_is_an_outage(account: Path, server: ApiServer) -> None:
    trustme.CA().cert_pem.write_to_path(account / "ca.crt")
    with pytest.raises(Unavailable, match=r"^API server: the certificate of \S+ is not trusted: "):
        Rest(None, user_agent="test").request("GET", "/api/v1/pods", timeout=SECONDS)
    assert tokens(server) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("token", "the token file .* cannot be read: No such file"), ("ca.crt", "No such file")],
)
def test_a_service_account_without_its_files_is_named(account: Path, name: str, text: str) -> None:
    (account / name).unlink()
    with pytest.raises(
        CredentialsError, match=rf"^kubeconfig: cannot use the pod's service account: .*{text}"
    ):
        Rest(None, user_agent="test")


class Waits:
    """Stands for the waits before a retry; calls *then* after some of them."""

    def __init__(self, then: Callable[[], None] = lambda: None, after: int = 0) -> None:
        self.seconds: list[float] = []
        self.reported: list[tuple[int, float]] = []
        self._then = then
        self._after = after

    def __call__(self, closed: threading.Event, seconds: float) -> bool:
        self.seconds.append(seconds)
        if len(self.seconds) == self._after:
            self._then()
        return closed.is_set()

    def report(self, status: str, seconds: float) -> None:
        assert len(self.reported) == len(self.seconds)  # before it waits
        self.reported.append((int(status[:3]), seconds))

    def clock(self) -> float:
        return sum(self.seconds)


@pytest.fixture
def plain() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


class NoCredentials:
    def current(self) -> access.Credentials:
        return access.Credentials()

    def reject(self, credentials: access.Credentials) -> None:
        pass


def connect(url: str, waits: Waits | None = None) -> Rest:
    access = ServerAccess(url, NoCredentials())
    if waits is None:
        return Rest(access, user_agent="test")
    return Rest(access, user_agent="test", on_wait=waits.report, wait=waits, clock=waits.clock)


_EACH: Timeout = (60.0, 60.0)
"""For the connection and for each read, and so none for all of a request."""


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_request_is_sent_again_after_the_time_that_the_server_names(
    plain: ApiServer, status: int, method: str
) -> None:
    plain.fail(Fault(status, retry_after="7"))
    waits = Waits(plain.restore, after=3)
    rest = connect(plain.url, waits)
    path, body = "/api/v1/namespaces/default/configmaps/a", {"metadata": {"name": "a"}}
    assert rest.request(method, path, timeout=_EACH, body=body).status < 500
    assert waits.seconds == [7, 7, 7]
    assert [each.method for each in plain.requests] == [method] * 4


@pytest.mark.parametrize(
    ("status", "header", "timeout", "waited"),
    [
        *((status, "1", _EACH, []) for status in (404, 409)),
        *(
            (503, header, _EACH, [])
            for header in ("", "Fri, 27 Nov 2026 00:00:00 GMT", "-1", "1.5", "soon", "9" * 10)
        ),
        *((status, "3600", _EACH, []) for status in (429, 503)),  # client-go would wait
        *((429, "60", _EACH, []), (429, "59", _EACH, [59]), (429, "25", _EACH, [25, 25])),
        (429, "1", _EACH, [1] * 10),  # never more
        *((429, "60", 30.0, []), (429, "30", 30.0, []), (429, "20", 30.0, [20])),
        (429, "9", 30.0, [9] * 3),
    ],
)
def test_retries_end_within_the_timeout_of_the_whole_request_or_after_ten(
    plain: ApiServer, status: int, header: str, timeout: Timeout, waited: list[int]
) -> None:
    plain.fail(Fault(status, retry_after=header))
    waits = Waits()
    rest = connect(plain.url, waits)
    assert rest.request("GET", "/api/v1/pods", timeout=timeout).status == status
    assert waits.seconds == waited
    assert waits.reported == [(status, each) for each in waited]
    assert len(plain.requests) == len(waited) + 1


def test_a_retry_has_the_rest_of_the_timeout_as_the_servers_own(plain: ApiServer) -> None:
    plain.fail(Fault(429, retry_after="8"))
    rest = connect(plain.url, Waits(plain.restore, after=1))
    rest.request("GET", "/api/v1/pods", timeout=SharedTimeout(30))
    assert [each.query for each in plain.requests] == ["timeout=30.000s", "timeout=22.000s"]


def test_a_closed_client_does_not_wait(plain: ApiServer) -> None:
    plain.fail(Fault(429, retry_after="59"))

    def wait(closed: threading.Event, seconds: float) -> bool:
        rest.close()
        return threading.Event.wait(closed, seconds)

    rest = Rest(ServerAccess(plain.url, NoCredentials()), user_agent="test", wait=wait)
    assert rest.request("GET", "/api/v1/pods", timeout=_EACH).status == 429


def _tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLEOFError(8, f"[SSL] {reason}")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), "No route to host"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (_tls("UNEXPECTED_EOF_WHILE_READING"), "TLS: unexpected eof while reading"),
    ],
)
def test_a_broken_connection_names_the_server(cause: OSError, text: str) -> None:
    wrapped = urllib3.exceptions.ProtocolError("Connection aborted.", cause)
    for error in (cause, wrapped):
        assert describe(error, "https://10.0.0.1:6443/x") == f"10.0.0.1:6443: {text}"


def test_https_to_a_port_without_tls_is_reported_in_words(plain: ApiServer) -> None:
    rest = connect(plain.url.replace("http:", "https:"))
    where = rest.host.removeprefix("https://")
    text = f"{where} does not speak TLS, which {rest.host} demands"
    why = "TLS: (wrong version number|record layer failure)"
    with pytest.raises(Unavailable, match=rf"^API server: {text} \({why}\)$"):
        rest.request("GET", "/api/v1/pods", timeout=SECONDS)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        # net/http of Go, nginx, and another response
        (b"Client sent an HTTP request to an HTTPS server.\n", "expects"),
        (b"<center>The plain HTTP request was sent to HTTPS port</center>", "expects"),
        (b"Your browser sent an invalid request.", ""),
    ],
)
def test_http_to_a_port_with_tls_is_reported_in_words(
    plain: ApiServer, body: bytes, text: str
) -> None:
    plain.fail(Fault(400, body=body))
    client = Client(ServerAccess(plain.url, NoCredentials()), user_agent="test")
    where = plain.url.removeprefix("http://")
    with pytest.raises((Unavailable, Rejected)) as found:
        client.call("GET", "/version", timeout=SECONDS)
    wanted = f"API server: {where} expects https, and the URL of the API server is {plain.url}"
    assert str(found.value) == (wanted if text else "Bad Request")


def test_an_error_in_plain_text_is_shown() -> None:
    """As of a pod's probe by the API server's proxy."""
    served = StatusServer("127.0.0.1", 0, {"/readyz": probe(lambda: "not registered")}, slow=())
    access = ServerAccess(f"http://127.0.0.1:{served.port}", NoCredentials())
    try:
        with pytest.raises(Unavailable, match=r"^API server: 503 not registered$"):
            Client(access, user_agent="test").read_text("/readyz", timeout=SECONDS)
    finally:
        served.stop()


@pytest.mark.parametrize(
    ("number", "why", "text"),
    [
        (socket.EAI_NONAME, "Name or service not known", "no such host: api.example"),
        (
            socket.EAI_AGAIN,
            "Temporary failure in name resolution",
            "the name api.example cannot be resolved: Temporary failure in name resolution",
        ),
        (
            socket.EAI_FAIL,
            "Non-recoverable failure in name resolution",
            "the name api.example cannot be resolved: Non-recoverable failure in name resolution",
        ),
    ],
)
def test_a_name_without_an_address_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, why: str, text: str
) -> None:
    def fail(*_args: object) -> None:
        raise socket.gaierror(number, why)

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    rest = connect("https://api.example:6443")
    with pytest.raises(Unavailable, match=f"^API server: {re.escape(text)}$"):
        rest.request("GET", "/api/v1/pods", timeout=SECONDS)


def test_a_server_that_refuses_or_is_silent_is_named(plain: ApiServer) -> None:
    rest = connect(plain.url)
    where = plain.url.rpartition("/")[2]
    plain.fail(SILENCE)
    with pytest.raises(Unavailable, match=f"^API server: no response from {where} within 0.2 s$"):
        rest.request("GET", "/api/v1/pods", timeout=0.2)
    plain.set_outage(Outage.REFUSED)
    with pytest.raises(Unavailable, match=f"^API server: connection refused by {where}$"):
        rest.request("GET", "/api/v1/pods", timeout=SECONDS)


def test_a_frozen_server_is_given_up_after_the_timeout_of_the_connection() -> None:
    """Its kernel accepts the connection, and TLS waits."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        where = f"127.0.0.1:{frozen.getsockname()[1]}"
        text = f"no response from {where} within 0.3 s"
        with pytest.raises(Unavailable, match=f"^API server: {text}$"):
            connect(f"https://{where}").request("GET", "/", timeout=(0.3, SECONDS))


_TEXTS = st.sampled_from(
    [
        *('"managedFields":[{', ',"managedFields":[{"', "}],", '}],"', "}]},", '}]},"spec":{'),
        *('\\",', '"metadata":{', "\\", '"', "\u00e9", "managedFields", "a"),
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers() | _TEXTS
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS: st.SearchStrategy[Any] = st.recursive(
    st.just({}), lambda inner: st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=6
)
_MANAGED = st.fixed_dictionaries({"manager": _TEXTS, "time": _TEXTS, "fieldsV1": _FIELDS})


@st.composite
def _objects(draw: st.DrawFn) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": draw(_TEXTS), "annotations": draw(_JSON)}
    if draw(st.booleans()):
        metadata["managedFields"] = draw(st.lists(_MANAGED, min_size=1, max_size=2))
    if draw(st.booleans()):  # not as an API server sorts them
        metadata["uid"] = draw(_TEXTS)
    rest = {"spec": draw(_JSON)} if draw(st.integers(0, 4)) else {}
    return {"metadata": metadata, **rest, "status": draw(_JSON)}


def _bare(value: Any) -> Any:
    """The list without what may be left out, of nested objects too."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _bare(each)
        for key, each in value.items()
        if key != "managedFields" or not isinstance(each, list)
    }


def _encoded(items: list[Any], **how: Any) -> bytes:
    found = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
    return json.dumps(found, separators=(",", ":"), **how).encode()


@patient
@given(st.lists(_objects(), max_size=3), st.booleans(), st.booleans())
def test_nothing_but_managed_fields_is_left_out(
    items: list[Any], ascii_only: bool, sort: bool
) -> None:
    content = _encoded(items, ensure_ascii=ascii_only, sort_keys=sort)
    assert _bare(decode_without_managed_fields(content)) == _bare(json.loads(content))


def test_managed_fields_are_left_out_where_they_stand_as_an_api_server_writes_them() -> None:
    managed = [{"manager": "kubelet", "fieldsV1": {"f:spec": {'k:{"a":"b"}': {".": {}}}}}]
    item = {"metadata": {"name": "a", "managedFields": managed}, "spec": {"nodeName": "n1"}}
    assert (
        decode_without_managed_fields(_encoded([item, item]))["items"]
        == [{"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}}] * 2
    )


@pytest.mark.parametrize("content", [b"", b'{"items":[', b'{"a":1,"managedFields":[{'])
def test_invalid_json_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        decode_without_managed_fields(content)
