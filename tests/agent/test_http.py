"""The agent's own HTTP pages."""

import socket
from collections.abc import Iterator

import pytest
import urllib3

from agent.errors import SettingsError
from agent.http import StatusServer, probe
from tests.agent.fakes import eventually


@pytest.fixture
def pages() -> Iterator[tuple[StatusServer, dict[str, bool]]]:
    state = {"ok": True}
    server = StatusServer(
        "127.0.0.1",
        0,
        {
            "/readyz": probe(lambda: "" if state["ok"] else "not registered"),
            "/metrics": lambda: (200, "text/plain; version=0.0.4", b"up 1\n"),
        },
    )
    yield server, state
    server.stop()


def get(server: StatusServer, path: str, method: str = "GET") -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(retries=False, timeout=10) as pool:
        return pool.request(method, f"http://127.0.0.1:{server.port}{path}")


def test_a_probe_is_ok_or_says_why_not(pages: tuple[StatusServer, dict[str, bool]]) -> None:
    server, state = pages
    answer = get(server, "/readyz")
    assert (answer.status, answer.data) == (200, b"ok\n")
    state["ok"] = False
    answer = get(server, "/readyz?verbose")
    assert (answer.status, answer.data) == (503, b"not registered\n")


def test_a_page_brings_its_own_content_type(pages: tuple[StatusServer, dict[str, bool]]) -> None:
    answer = get(pages[0], "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
    assert answer.headers["Content-Length"] == "5"
    assert answer.headers["Server"].strip() == "gpu-turnstile"
    assert answer.data == b"up 1\n"


@pytest.mark.parametrize("path", ["/", "/healthz/", "/nothing", "/../readyz"])
def test_any_other_page_is_not_found(
    pages: tuple[StatusServer, dict[str, bool]], path: str
) -> None:
    # Written by hand: a client would tidy the path up.
    with socket.create_connection(("127.0.0.1", pages[0].port), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.0 404 ")
    assert answer.endswith(b"not found\n")


def test_nothing_but_get_is_served(pages: tuple[StatusServer, dict[str, bool]]) -> None:
    assert get(pages[0], "/readyz", "POST").status == 501


def test_a_port_in_use_is_a_setting_that_cannot_be_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            SettingsError, match=rf"^http-port: cannot listen on 127.0.0.1:{port}: .*in use"
        ):
            StatusServer("127.0.0.1", port, {})


def test_an_address_that_is_none_of_this_host_is_one_too() -> None:
    with pytest.raises(SettingsError, match=r"^http-port: cannot listen on 192.0.2.1:0: "):
        StatusServer("192.0.2.1", 0, {})


def test_a_port_is_free_again_after_stopping() -> None:
    server = StatusServer("127.0.0.1", 0, {})
    server.stop()
    again = StatusServer("127.0.0.1", server.port, {})
    assert again.port == server.port
    again.stop()


def test_a_client_that_says_nothing_holds_nobody_up(
    pages: tuple[StatusServer, dict[str, bool]],
) -> None:
    with socket.create_connection(("127.0.0.1", pages[0].port)):
        eventually(lambda: get(pages[0], "/readyz").status == 200, "others are served")
