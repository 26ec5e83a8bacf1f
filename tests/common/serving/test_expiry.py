from datetime import UTC, datetime, timedelta

import pytest

from certs.issue import issue
from certs.names import parse_subject
from common.serving.expiry import not_after


def test_the_end_of_the_first_certificate_is_read() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    issued = issue(parse_subject(["localhost"], [], 7), now=now)
    expected = (now + timedelta(days=7)).timestamp()
    assert not_after(issued.serving.certificate) == pytest.approx(expected, abs=60)
