"""Reads the certificates that webhook replicas serve, by a TLS handshake with each."""

import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass

from certs.errors import InvalidCertificate, InvalidField
from certs.objects import Served
from certs.reading import Certificate, read_certificate

_SECONDS = 5.0
_LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Replicas:
    """All webhook replicas behind a host name.

    Attributes:
        host: resolves to the addresses of all replicas, like the name of a headless Service.
        port: port of each replica.
    """

    host: str
    port: int

    def fetch_served(self, server_name: str, *, timeout: float = _SECONDS) -> Served:
        """Return each address's certificate for *server_name* (SNI).

        It is ``None`` if the address is silent for *timeout* seconds.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:  # no replica, or no name server: nothing is known
            return {}
        addresses = sorted({str(address[0]) for *_, address in found})
        return {each: self._shake(each, server_name, timeout) for each in addresses}

    def _shake(self, address: str, server_name: str, timeout: float) -> Certificate | None:
        # The certificate is only read, and nothing is sent: no verification is needed.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            suppress(OSError, InvalidCertificate),
            socket.create_connection((address, self.port), timeout=timeout) as plain,
            context.wrap_socket(plain, server_hostname=server_name) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
            if shown is not None:
                return read_certificate(ssl.DER_cert_to_PEM_cert(shown).encode("ascii"))
        return None


def parse_replicas(text: str) -> Replicas | None:
    """Read ``HOST:PORT``; ``None`` if the text is empty.

    Raises:
        InvalidField: it has another form.
    """
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _LARGEST_PORT:
        raise InvalidField("replicas", text, "must be HOST:PORT")
    return Replicas(host, int(port))
