"""JSON to one HTTP server and back, as Go's client does it: connections are used again."""

import http.client
import json
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from simulator.scheduler.configuration import ExtenderSettings, TlsSettings


class ExtenderError(Exception):
    """An extender could not be asked, or its answer is not usable."""


class Endpoint:
    """One server. Safe to share between threads.

    Args:
        settings: where it is, and how to reach it.

    Raises:
        ValueError: the settings contradict each other, or name a file that is unusable.
    """

    def __init__(self, settings: ExtenderSettings) -> None:
        parts = urlsplit(settings.url_prefix)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"urlPrefix: not a URL: {settings.url_prefix!r}")
        self._prefix = settings.url_prefix.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, parts.port
        self._timeout = settings.timeout_s
        tls = settings.tls or TlsSettings()
        # The scheme decides whether TLS is spoken; enableHTTPS only whether anything is verified.
        self._context = (
            tls_context(tls, enable_https=settings.enable_https)
            if parts.scheme == "https"
            else None
        )
        self._server_name = tls.server_name
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []

    def post(self, verb: str, body: object) -> Any:
        """Post *body*, and return the decoded answer.

        Raises:
            ExtenderError: there was no answer, it was not 200, or it is no JSON.
        """
        url = f"{self._prefix}/{verb}"
        connection = self._connection()
        try:
            connection.request(
                "POST",
                f"{self._path}/{verb}",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ExtenderError(f'Post "{url}": {error or type(error).__name__}') from error
        self._keep(connection)
        if answer.status != http.client.OK:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        try:
            return json.loads(content)
        except ValueError as error:
            raise ExtenderError(f"{url}: not JSON: {error}") from error

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            each.close()

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if _alive(connection):
                    return connection
                connection.close()
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return _NamedConnection(
            self._host,
            self._port,
            timeout=self._timeout,
            context=self._context,
            server_name=self._server_name,
        )

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:  # the server said that it closes
            return
        with self._lock:
            self._idle.append(connection)


class _NamedConnection(http.client.HTTPSConnection):
    """A connection that may ask for another name than the host's (``serverName``)."""

    def __init__(
        self,
        host: str,
        port: int | None,
        *,
        timeout: float,
        context: ssl.SSLContext,
        server_name: str,
    ) -> None:
        super().__init__(host, port, timeout=timeout)
        self._tls = context
        self._name = server_name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._name)


def tls_context(tls: TlsSettings, *, enable_https: bool) -> ssl.SSLContext:
    """Make what kube-scheduler makes of ``tlsConfig`` (``makeTransport`` in ``extender.go``).

    Raises:
        ValueError: an authority is named and verification is off, or a file is unusable.
    """
    # Without an authority, enableHTTPS turns verification off: so it is upstream.
    insecure = tls.insecure or (enable_https and not tls.has_ca)
    if insecure and tls.has_ca:
        raise ValueError(
            "specifying a root certificates file with the insecure flag is not allowed"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif tls.has_ca:
            ca = tls.ca_data.decode() or Path(tls.ca_file).read_text(encoding="ascii")
            context.load_verify_locations(cadata=ca)
        else:
            context.load_default_certs()
        if tls.cert_data or tls.cert_file:
            _load_own(context, tls)
    except (OSError, ValueError) as error:
        raise ValueError(f"tlsConfig: {error}") from error
    return context


def _load_own(context: ssl.SSLContext, tls: TlsSettings) -> None:
    # ssl reads a certificate of its own from files only.
    with tempfile.TemporaryDirectory() as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert.write_bytes(tls.cert_data or Path(tls.cert_file).read_bytes())
        key.write_bytes(tls.key_data or Path(tls.key_file).read_bytes())
        context.load_cert_chain(cert, key)


def _alive(connection: http.client.HTTPConnection) -> bool:
    """Return whether a connection that was idle can be used: the server has not closed it."""
    sock = connection.sock
    if sock is None:
        return False
    sock.setblocking(False)  # noqa: FBT003 -- the name of the method says it
    try:
        return sock.recv(1) == b"never"  # end of file, or bytes that nobody asked for
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        sock.settimeout(connection.timeout)
