from datetime import UTC, datetime

import pytest

from certs.issue import Issued, issue
from certs.names import parse_subject


@pytest.fixture(scope="session")
def issued() -> Issued:
    """What ``certs issue --dns localhost --dns turnstile.example.svc --ip 127.0.0.1`` makes."""
    subject = parse_subject(["localhost", "turnstile.example.svc"], ["127.0.0.1"], 30)
    return issue(subject, now=datetime.now(UTC))
