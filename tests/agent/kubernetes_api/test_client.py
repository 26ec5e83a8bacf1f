"""The agent's client of the API server, against a simulated server that has faults."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import pytest
from urllib3.exceptions import ReadTimeoutError

from agent.errors import SettingsError, Unavailable
from agent.kubernetes_api import client as module
from agent.kubernetes_api.client import Api, Gone, Rejected
from agent.kubernetes_api.pods import PodCache
from common.apiserver.client import SILENT_SECONDS, split_lines
from common.apiserver.follower import Collection
from placement.pods import PodInfo
from simulator.api.faults import SILENCE, Fault
from simulator.api.server import ApiServer
from tests.agent.fakes import DEADLINE_S, NAMES, make_manifest


def pods_of(api: Api) -> Collection[PodInfo]:
    return PodCache(api=api, node="n1", names=NAMES).collection


def set_response(server: ApiServer, status: int, body: object, *, cut: bool = False) -> None:
    """Set the response to every request; *body* is bytes, or an object to be sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    server.fail(Fault(status, content, cut=cut))


def test_credentials_that_cannot_be_used_are_named() -> None:
    """Why, and in which field: tests of :mod:`common.apiserver.kubeconfig`."""
    with pytest.raises(SettingsError, match=r"^kubeconfig: cannot use /there/is/none: "):
        Api(Path("/there/is/none"))


# --- list, get, patch -----------------------------------------------------------------


def test_a_list_is_served_from_the_cache_of_the_api_server(api: Api, server: ApiServer) -> None:
    set_response(server, 200, {"metadata": {"resourceVersion": "7"}, "items": None})
    assert pods_of(api).list() == "7"
    (request,) = server.requests
    assert request.path == "/api/v1/pods"
    assert request.query == "fieldSelector=spec.nodeName=n1&resourceVersion=0"


def test_a_pod_is_got_raw_and_an_absent_one_is_none(api: Api, server: ApiServer) -> None:
    server.apply(make_manifest("here"))
    found = api.get_pod("default", "here")
    assert found is not None
    assert found["spec"]["nodeName"] == "n1"
    assert api.get_pod("default", "absent") is None


@pytest.mark.parametrize(
    ("expected", "statuses"),
    [
        (Rejected, [400, 401, 403, 404, 409, 418, 422]),
        (Gone, [410]),
        (Unavailable, [429, 500, 503]),
    ],
)
def test_every_status_is_translated(
    api: Api, server: ApiServer, expected: type[Exception], statuses: list[int]
) -> None:
    for status in statuses:
        set_response(server, status, {"message": "because"})
        with pytest.raises(expected, match="because"):
            api.patch_pod("default", "a", {})


def test_a_forbidden_get_is_unavailable_not_absent(api: Api, server: ApiServer) -> None:
    set_response(server, 403, {"message": "no RBAC rule"})
    with pytest.raises(Unavailable, match=r"^GET pod default/a: no RBAC rule$"):
        api.get_pod("default", "a")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        # A proxy on the way responds 200 with a page of its own.
        (200, b"<html>", ".*"),
        (200, b"[]", ".*"),
        (200, b'{"metadata": {}}', ".*"),
        (200, b'{"metadata": 7}', ".*"),
        (200, b'{"metadata"', "(127.* closed the connection within a response|.* reset by peer)$"),
        # An error without a status body is shown by its reason.
        *((503, body, "503 Service Unavailable$") for body in (b"", b"<html>", b"[]", b"{}")),
    ],
)
def test_a_response_that_is_no_list_is_unavailable(
    api: Api, server: ApiServer, status: int, body: bytes, message: str
) -> None:
    set_response(server, status, body, cut=body == b'{"metadata"')
    with pytest.raises(Unavailable, match=rf"^API server: {message}"):
        pods_of(api).list()


def test_a_get_gives_up_in_time(
    api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GET_SECONDS", 0.1)
    server.fail(SILENCE)
    with pytest.raises(Unavailable, match=r"^API server: no response from \S+ within 0.1 s$"):
        api.get_pod("default", "a", within=1000)


# --- watch ----------------------------------------------------------------------------


def test_closing_ends_a_watch_at_once(api: Api) -> None:
    version = pods_of(api).list()
    begun = threading.Event()

    def watch() -> None:
        with suppress(Unavailable):
            for _ in pods_of(api).watch(version):
                begun.set()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        assert begun.wait(DEADLINE_S)
        api.close()
        watching.result(DEADLINE_S)
        pool.submit(watch).result(DEADLINE_S)  # one that begins later ends as well
    api.close()
    assert pods_of(api).list()  # pending writes may still be made


def line(kind: str, obj: object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def test_a_watch_that_the_server_ends_simply_ends(api: Api, server: ApiServer) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a"}}
    set_response(server, 200, line("ADDED", pod) + b"\n" + line("MODIFIED", pod) + b'{"type": "DEL')
    assert [kind for kind, _ in pods_of(api).watch("5")] == ["ADDED", "MODIFIED"]
    (request,) = server.requests
    assert request.path == "/api/v1/pods"
    assert re.sub("timeoutSeconds=[0-9]+", "timeoutSeconds=N", request.query) == (
        "allowWatchBookmarks=true&fieldSelector=spec.nodeName=n1"
        "&resourceVersion=5&timeoutSeconds=N&watch=true"
    )


def test_a_silent_watch_simply_ends(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[object] = []

    class Silent:
        status = 200

        def stream(self, _size: int) -> Iterator[bytes]:
            yield line("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
            raise ReadTimeoutError(cast(Any, None), "", "timed out")

        def close(self) -> None:
            """End the response."""

    def request(*_: object, timeout: object, **__: object) -> Silent:
        timeouts.append(timeout)
        return Silent()

    monkeypatch.setattr(api.rest, "request", request)
    assert [kind for kind, _ in pods_of(api).watch("5")] == ["BOOKMARK"]
    assert timeouts == [(5.0, SILENT_SECONDS)]


def test_the_watches_of_many_nodes_do_not_end_together(api: Api, server: ApiServer) -> None:
    for _ in range(8):
        set_response(server, 200, b"")
        assert not list(pods_of(api).watch("5"))
    seconds = [int(parse_qs(each.query)["timeoutSeconds"][0]) for each in server.requests]
    assert all(300 <= each <= 450 for each in seconds)
    assert len(set(seconds)) > 1


@pytest.mark.parametrize(
    ("body", "expected", "message"),
    [
        (line("ERROR", {"code": 410, "message": "too old"}), Gone, "too old"),
        (line("ERROR", {"code": 500, "message": "etcd"}), Unavailable, "watch: etcd"),
        (b"<html>\n", Unavailable, "watch: Expecting value: line 1 column 1 (char 0)"),
        (b"[]\n", Unavailable, "watch: not an event: []"),
        (b"{}\n", Unavailable, "watch: not an event: {}"),
        (b'{"type": "ADDED"}\n', Unavailable, 'watch: not an event: {"type": "ADDED"}'),
        (
            b'{"type": "ERROR", "object": 7}\n',
            Unavailable,
            'watch: not an event: {"type": "ERROR", "object": 7}',
        ),
    ],
)
def test_an_invalid_event_is_an_error(
    api: Api, server: ApiServer, body: bytes, expected: type[Exception], message: str
) -> None:
    set_response(server, 200, body)
    with pytest.raises(expected) as error:
        list(pods_of(api).watch("5"))
    assert str(error.value) == message


def test_lines_are_whole_however_the_stream_is_cut() -> None:
    class Stream:
        def stream(self, _size: int) -> Iterator[bytes]:
            yield from (b'{"a"', b": 1}\n\n{", b'"b": 2}\n{"c"')

    assert list(split_lines(Stream())) == [b'{"a": 1}', b'{"b": 2}']
