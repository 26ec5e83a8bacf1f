"""The agent's client of the API server, against a simulated server and a scripted one."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from agent.errors import SettingsError, Unavailable
from agent.kubernetes_api.client import Api, Gone, Rejected
from common.apiserver.client import split_lines
from simulator.api.server import ApiServer, kubeconfig_for
from tests.agent.fakes import Scripted, eventually, make_manifest

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as running:
        yield running


@pytest.fixture
def talks_to(scripted: Scripted, tmp_path: Path) -> Api:
    path = tmp_path / "scripted"
    path.write_text(kubeconfig_for(scripted.url))
    return Api(path)


# --- credentials ----------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, "", "[]", "nonsense: [", '{"clusters": 7}', "\x00"])
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=rf"^kubeconfig: cannot use {path}: "):
        Api(path)


def test_outside_a_pod_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        SettingsError, match=r"^kubeconfig: cannot use the pod's service account: Service host/port"
    ):
        Api(None)


# --- list, get, patch -----------------------------------------------------------------


def test_a_list_is_served_from_the_cache_of_the_api_server(
    talks_to: Api, scripted: Scripted
) -> None:
    scripted.say(200, {"metadata": {"resourceVersion": "7"}, "items": None})
    assert talks_to.list_pods("n1") == ([], "7")
    assert scripted.requests == [
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0")
    ]


def test_a_pod_is_got_raw_and_an_absent_one_is_none(api: Api, server: ApiServer) -> None:
    server.apply(make_manifest("here"))
    found = api.get_pod("default", "here")
    assert found is not None
    assert found["spec"]["nodeName"] == "n1"
    assert api.get_pod("default", "nobody") is None


UID_OF_ANOTHER = {"metadata": {"uid": "another"}}


@pytest.mark.parametrize(
    ("call", "status", "message"),
    [
        (lambda api: api.patch_pod("default", "a", UID_OF_ANOTHER), 409, ".*"),
        (lambda api: api.patch_pod("default", "b", {}), 404, 'pods "b" not found'),
        (lambda api: api.patch_node("n2", {}), 404, 'nodes "n2" not found'),
        (lambda api: api.patch_event("default", "a.1", {}), 404, 'events "a.1" not found'),
    ],
)
def test_a_patch_of_what_is_gone_or_a_successor_is_rejected(
    api: Api, server: ApiServer, call: Callable[[Api], None], status: int, message: str
) -> None:
    server.apply(make_manifest("a"))
    with pytest.raises(Rejected, match=f"^{message}$") as refused:
        call(api)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, Rejected),
        (401, Rejected),
        (403, Rejected),
        (404, Rejected),
        (409, Rejected),
        (410, Gone),
        (418, Rejected),
        (422, Rejected),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_every_status_is_translated(
    talks_to: Api, scripted: Scripted, status: int, expected: type[Exception]
) -> None:
    scripted.say(status, {"message": "because"})
    with pytest.raises(expected, match="because"):
        talks_to.patch_pod("default", "a", {})


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}"])
def test_an_error_without_a_status_body_is_told_by_its_reason(
    talks_to: Api, scripted: Scripted, body: bytes
) -> None:
    scripted.say(503, body)
    with pytest.raises(Unavailable, match=r"^API server: 503 Service Unavailable$"):
        talks_to.list_pods("n1")


def test_a_forbidden_get_is_unavailable_not_absent(talks_to: Api, scripted: Scripted) -> None:
    scripted.say(403, {"message": "no RBAC rule"})
    with pytest.raises(Unavailable, match=r"^GET pod default/a: no RBAC rule$"):
        talks_to.get_pod("default", "a")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"metadata": {}}', b'{"metadata": 7}'])
def test_an_answer_that_is_no_list_is_unavailable(
    talks_to: Api, scripted: Scripted, body: bytes
) -> None:
    """A proxy on the way answers 200 with a page of its own."""
    scripted.say(200, body)
    with pytest.raises(Unavailable, match=r"^API server: "):
        talks_to.list_pods("n1")


def test_a_broken_off_answer_is_unavailable(talks_to: Api, scripted: Scripted) -> None:
    scripted.say(200, b'{"metadata"')
    scripted.headers = {"Content-Length": "1000"}
    with pytest.raises(Unavailable, match=r"^API server: "):
        talks_to.list_pods("n1")


def test_a_get_gives_up_after_about_a_second(talks_to: Api, scripted: Scripted) -> None:
    scripted.hang.clear()
    began = time.monotonic()
    with pytest.raises(Unavailable, match="timed out"):
        talks_to.get_pod("default", "a")
    assert time.monotonic() - began < 10


# --- events ---------------------------------------------------------------------------


# --- watch ----------------------------------------------------------------------------


class Watching:
    """A thread that watches."""

    def __init__(self, api: Api, version: str) -> None:
        self.bookmarks = 0
        self.error: Exception | None = None
        self._api, self._version = api, version
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for kind, _ in self._api.watch_pods("n1", self._version):
                self.bookmarks += kind == "BOOKMARK"
        except (Gone, Unavailable) as error:
            self.error = error

    def ended(self, within: float = 5.0) -> bool:
        self.thread.join(within)
        return not self.thread.is_alive()


def test_closing_ends_a_watch_at_once(api: Api) -> None:
    _, version = api.list_pods("n1")
    watching = Watching(api, version)
    eventually(lambda: watching.bookmarks > 0, "the watch runs")
    began = time.monotonic()
    api.close()
    assert watching.ended()
    assert time.monotonic() - began < 2
    assert Watching(api, version).ended()
    api.close()
    assert api.list_pods("n1")[0] == []  # what waits to be written may still be


def line(kind: str, obj: object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def test_a_watch_that_the_server_ends_simply_ends(talks_to: Api, scripted: Scripted) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a"}}
    scripted.say(200, line("ADDED", pod) + b"\n" + line("MODIFIED", pod) + b'{"type": "DEL')
    assert [kind for kind, _ in talks_to.watch_pods("n1", "5")] == ["ADDED", "MODIFIED"]
    ((method, path),) = scripted.requests
    assert (method, re.sub("timeoutSeconds=[0-9]+", "timeoutSeconds=N", path)) == (
        "GET",
        (
            "/api/v1/pods?allowWatchBookmarks=true&fieldSelector=spec.nodeName%3Dn1"
            "&resourceVersion=5&timeoutSeconds=N&watch=true"
        ),
    )


def test_the_watches_of_many_nodes_do_not_end_together(talks_to: Api, scripted: Scripted) -> None:
    for _ in range(8):
        scripted.say(200, b"")
        assert not list(talks_to.watch_pods("n1", "5"))
    asked = [int(parse_qs(path)["timeoutSeconds"][0]) for _, path in scripted.requests]
    assert all(300 <= each <= 450 for each in asked)
    assert len(set(asked)) > 1


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
def test_what_is_no_event_is_an_error(
    talks_to: Api, scripted: Scripted, body: bytes, expected: type[Exception], message: str
) -> None:
    scripted.say(200, body)
    with pytest.raises(expected) as error:
        list(talks_to.watch_pods("n1", "5"))
    assert str(error.value) == message


def test_lines_are_whole_however_the_stream_is_cut() -> None:
    class Stream:
        def stream(self, _size: int) -> Iterator[bytes]:
            yield from (b'{"a"', b": 1}\n\n{", b'"b": 2}\n{"c"')

    assert list(split_lines(Stream())) == [b'{"a": 1}', b'{"b": 2}']
