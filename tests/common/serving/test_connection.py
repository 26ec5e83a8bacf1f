"""Which clients of a server are verified."""

from asyncio import Transport
from typing import Any

import pytest

from common.serving.connection import is_verified

CERTIFICATE = {"subject": ()}


class Peer(Transport):
    """A connection of which only its facts are known."""

    def __init__(self, address: str, *, tls: bool = False, certificate: Any = None) -> None:
        peer = (address, 40000) if address else None
        super().__init__({"peername": peer, "sslcontext": tls or None, "peercert": certificate})


@pytest.mark.parametrize(
    ("peer", "verified"),
    [
        (Peer("10.0.0.7", tls=True, certificate=CERTIFICATE), True),
        (Peer("10.0.0.7", tls=True), False),
        (Peer("127.0.0.1", tls=True), False),
        (Peer("127.0.0.1"), True),
        (Peer("::1"), True),
        (Peer("::ffff:127.0.0.1"), True),
        (Peer("10.0.0.7"), False),
        (Peer("::ffff:10.0.0.7"), False),
        (Peer("fe80::1%eth0"), False),
        (Peer(""), False),
    ],
)
def test_a_client_is_verified_by_its_certificate_or_without_tls_by_its_address(
    peer: Peer, verified: bool
) -> None:
    assert is_verified(peer) is verified
