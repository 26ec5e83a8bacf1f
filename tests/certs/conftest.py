from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from certs.issue import Issued, issue
from certs.names import parse_subject


@pytest.fixture(scope="session")
def issued() -> Issued:
    """What ``certs issue --dns localhost --dns turnstile.example.svc --ip 127.0.0.1`` makes."""
    subject = parse_subject(["localhost", "turnstile.example.svc"], ["127.0.0.1"], 30)
    return issue(subject, now=datetime.now(UTC))


@pytest.fixture(scope="session")
def rsa_key() -> bytes:
    """A key of a kind that we never make."""
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
