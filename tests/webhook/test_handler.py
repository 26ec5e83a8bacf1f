import json
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest

from common.serving.answer import JSON
from contract.names import Names
from contract.stamps import OrderStamp
from webhook.access_log import AccessLog
from webhook.admission.reviewer import Reviewer
from webhook.handler import Handler, Request

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
