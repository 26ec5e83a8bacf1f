"""The webhook's side of TLS: the certificate, and alerts that reach the client."""

import ssl
from collections.abc import Callable
from contextvars import ContextVar

from common.serving import tls
from common.serving.tls import Change, Files

__all__ = ["ON_FAILED_HANDSHAKE", "Certificate", "Change", "server_context"]

ON_FAILED_HANDSHAKE: ContextVar[Callable[[], object]] = ContextVar("ON_FAILED_HANDSHAKE")
"""Called when a handshake fails; whoever starts it sets this before."""


class _Handshake(ssl.SSLObject):
    """One connection; when its handshake fails, the client receives the alert.

    asyncio closes as soon as OpenSSL raises, and OpenSSL's alert is never sent. So a failure
    is reported, and asyncio is told to wait for input, for which it sends what is pending.
    """

    def do_handshake(self) -> None:
        """Continue the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            ON_FAILED_HANDSHAKE.get()()
            raise ssl.SSLWantReadError from error


class Certificate(tls.Certificate):
    """The certificate that is served by asyncio: the newest usable one."""

    def _make(self) -> ssl.SSLContext:
        return server_context(self._files)


def server_context(files: Files) -> ssl.SSLContext:
    """Make a server's context, for TLS 1.2 and newer.

    Raises:
        SettingsError: a file cannot be read or used, or the two do not belong together.
    """
    context = tls.server_context(files)
    context.sslobject_class = _Handshake
    return context
