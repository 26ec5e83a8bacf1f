import json
import os

from webhook.access_log import AccessLog


def test_the_line_of_a_review_has_the_fields_of_every_line() -> None:
    lines: list[bytes] = []
    AccessLog(lines.append, clock=lambda: 1.5).write("reviewed", uid="a\nb", rules=("x",))
    (line,) = lines
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "info",
        "logger": "webhook.access",
        "pid": os.getpid(),
        "message": "reviewed",
        "uid": "a\nb",
        "rules": ["x"],
    }
