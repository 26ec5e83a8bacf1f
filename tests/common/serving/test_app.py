"""Routes, where no program's own test covers them."""

import asyncio
from http import HTTPStatus

import pytest

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from tests.common.serving.through import call, client_of, scope_of


def application() -> Application:
    return Application(lambda _, status, text: HttpResponse(status, TEXT, text.encode()), "ours", 9)


def test_a_waiting_view_continues_after_its_client_disconnects() -> None:
    async def run() -> None:
        started, continues, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def view(_: HttpRequest) -> HttpResponse:
            started.set()
            await continues.wait()
            done.set()
            return HttpResponse(HTTPStatus.OK, TEXT, b"")

        app = application()
        app.add("/", "POST", view)
        scope = scope_of({"REQUEST_METHOD": "POST", "PATH_INFO": "/"})
        request = asyncio.create_task(call(app, scope, [b""]))
        await started.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        continues.set()
        await asyncio.wait_for(done.wait(), 60)

    asyncio.run(run())


def test_a_head_response_has_its_length_and_no_body() -> None:
    app = application()
    app.add("/", "GET", lambda _: HttpResponse(HTTPStatus.OK, TEXT, b"text"))
    response = client_of(app).head("/")
    assert (response.status_code, response.headers["Content-Length"]) == (200, "4")
    assert response.data == b""
