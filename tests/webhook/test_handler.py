import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.access_log import AccessLog
from webhook.admission.reviewer import Reviewer
from webhook.errors import BadRequest
from webhook.handler import JSON, TEXT, Answer, Handler, Request

Json = dict[str, Any]
Stamp = Callable[[], OrderStamp]


def _asked(review: object, content_type: str = "application/json") -> Request:
    content = json.dumps(review).encode()
    return Request(content_type, "", lambda: content, verified=False)


@pytest.fixture
def lines() -> list[bytes]:
    return []


@pytest.fixture
def handler(names: Names, stamp: Stamp, lines: list[bytes]) -> Handler:
    ticks = iter(range(100))
    return Handler(
        Reviewer(names=names, stamp=stamp),
        access=AccessLog(lines.append, lambda: 0.5),
        clock=lambda: next(ticks) * 0.0025,
    )


def test_a_review_leaves_one_log_line_without_contents_of_the_pod(
    handler: Handler, review: Json, lines: list[bytes]
) -> None:
    review["request"]["name"] = "x" * 300
    answer = handler.answer("/mutate/pods", _asked(review))
    assert (answer.status, answer.media) == (HTTPStatus.OK, JSON)
    (line,) = lines
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "info",
        "logger": "webhook.access",
        "pid": os.getpid(),
        "message": "reviewed",
        "uid": review["request"]["uid"],
        "path": "/mutate/pods",
        "kind": "v1/pods",
        "namespace": "team",
        "name": "x" * 250 + "...",
        "operation": "CREATE",
        "dry_run": False,
        "verdict": "patched",
        "rules": [],
        "warnings": 0,
        "duration_ms": 2.5,
    }


def test_a_bad_request_is_one_line_and_one_in_the_log(
    handler: Handler, lines: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    reason = "apiVersion: Required value: must be admission.k8s.io/v1"
    answer = handler.answer("/mutate/pods", _asked({}))
    assert answer == Answer(HTTPStatus.BAD_REQUEST, TEXT, f"{reason}\n".encode())
    (record,) = caplog.records
    fields = {"path": "/mutate/pods", "status": 400, "reason": reason}
    assert fields.items() <= vars(record).items()
    assert lines == []


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON ; charset=utf-8", "application/json;"]
)
def test_parameters_of_the_media_type_do_not_matter(
    handler: Handler, review: Json, content_type: str
) -> None:
    asked = _asked(review, content_type=content_type)
    assert handler.answer("/mutate/pods", asked).status is HTTPStatus.OK


def test_a_body_that_cannot_be_read_is_its_senders_fault(handler: Handler) -> None:
    def broken() -> bytes:
        raise BadRequest("body: breaks off")

    answer = handler.answer("/mutate/pods", replace(_asked({}), read_body=broken))
    assert answer == Answer(HTTPStatus.BAD_REQUEST, TEXT, b"body: breaks off\n")


def test_who_has_to_prove_who_it_is_is_not_read_before(names: Names, stamp: Stamp) -> None:
    def unread() -> bytes:
        raise AssertionError("read")

    handler = Handler(Reviewer(names=names, stamp=stamp), only_verified=True)
    answer = handler.answer("/mutate/pods", replace(_asked({}), read_body=unread))
    assert answer.status is HTTPStatus.FORBIDDEN


def test_a_mistake_of_ours_is_logged_and_shows_nothing(
    names: Names, review: Json, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> OrderStamp:
        raise RuntimeError("inner secret")

    handler = Handler(Reviewer(names=names, stamp=broken))
    with caplog.at_level(logging.ERROR):
        answer = handler.answer("/mutate/pods", _asked(review))
    assert answer.status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert answer.body == b"internal error, see the log of the webhook\n"
    assert "inner secret" in caplog.text
