"""Routes, where no program's own test asks for them."""

import asyncio
from http import HTTPStatus

import pytest

from common.serving.app import TEXT, Application, HttpRequest, HttpResponse
from tests.common.serving.through import call, client_of, scope_of


def application() -> Application:
    return Application(lambda _, status, text: HttpResponse(status, TEXT, text.encode()), "ours", 9)


def test_a_waiting_view_continues_after_its_client_disconnects() -> None:
    done: list[str] = []

    async def run() -> None:
        goes_on = asyncio.Event()

        async def view(_: HttpRequest) -> HttpResponse:
            await goes_on.wait()
            done.append("done")
            return HttpResponse(HTTPStatus.OK, TEXT, b"")

        app = application()
        app.add("/", "POST", view)
        scope = scope_of({"REQUEST_METHOD": "POST", "PATH_INFO": "/"})
        request = asyncio.create_task(call(app, scope, [b""]))
        await asyncio.sleep(0.01)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        goes_on.set()
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert done == ["done"]


def test_a_head_response_has_its_length_and_no_body() -> None:
    app = application()
    app.add("/", "GET", lambda _: HttpResponse(HTTPStatus.OK, TEXT, b"text"))
    response = client_of(app).head("/")
    assert (response.status_code, response.headers["Content-Length"], response.data) == (
        200,
        "4",
        b"",
    )
