"""Raw requests to the API server. Only this module here imports ``kubernetes`` and ``urllib3``.

The official client sends the requests: it handles connections, proxies and TLS. Its typed methods
and models are not used: to import them takes longer than the rest of the agent's start, and to
build typed objects for every pod event costs more than all other work. Its readers of kubeconfigs
and its retries are not used either, because they differ from those of client-go: see
:mod:`common.apiserver.kubeconfig` and :meth:`Rest.request`. The modules are imported one by one,
because programs defer their packages (``agent.__main__``).
"""

import logging
import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.client.rest import RESTClientObject
from urllib3.util.ssl_ import create_urllib3_context

from common.apiserver.access import (
    ClientCertificate,
    Credentials,
    ServerAccess,
    reason_of,
    service_account,
)
from common.apiserver.errors import CredentialsError
from common.errors import Unavailable

log = logging.getLogger(__name__)

Timeout = float | tuple[float, float]
"""Seconds for all of a request, or for the connection and for each read."""


class SharedTimeout(float):
    """Seconds for all of a request, of which the API server gets the rest as its own timeout."""


MOST_KEPT = 32
"""Idle connections that are kept; so many threads can make requests without new connections."""

BROKEN = (urllib3.exceptions.HTTPError, OSError)
"""Errors while reading a response if the connection breaks."""

OnWait = Callable[[str, float], None]
"""Called with the status for which a request is sent again, and after how many seconds."""

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_MOST_RETRIES = 10
_LONG_WAIT_SECONDS = 5.0
_NO_SUCH_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
"""Other errors, such as ``EAI_AGAIN``, mean that no name server has said so."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


def log_wait(status: str, seconds: float) -> None:
    """Log a wait that the API server asks for, unless it is short."""
    if seconds >= _LONG_WAIT_SECONDS:
        more = {"status": status, "seconds": seconds}
        log.info("request waits, as the API server asks", extra=more)


class Rest:
    """A connection to the API server. Safe to share between threads."""

    def __init__(
        self,
        access: ServerAccess | Path | None,
        *,
        user_agent: str,
        on_wait: OnWait = log_wait,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the credentials; no request is made yet.

        The *access* may be a kubeconfig file, for its current context, or ``None`` for the service
        account of the pod. Audit logs show *user_agent*. *on_wait* is called before each wait that
        the API server asks for. *wait* waits for an event, or so many seconds, and returns whether
        the event has happened; *clock* is in monotonic seconds.

        Raises:
            CredentialsError: the credentials cannot be used.
        """
        self._access = _read(access)
        self._user_agent = user_agent
        self._on_wait = on_wait
        self._wait = wait
        self._clock = clock
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._certificate: ClientCertificate | None = None
        self._client = _make_client(self._access, None)

    def request(
        self,
        method: str,
        path: str,
        *,
        timeout: Timeout,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | list[Any] | None = None,
    ) -> Any:
        """Make one request to an absolute, quoted *path*.

        If the response is 429 or 5xx with ``Retry-After`` in seconds, the request is sent again
        after that time, up to ten times, as client-go does it with every method
        (``rest/with_retry.go``). There is no wait beyond the *timeout* for all of it, or for a
        read: client-go would wait for hours.

        If the response is 401, and the credentials that are read anew differ, the request is sent
        once more with these: a token may have been replaced since it was read.

        The *body* is a JSON object; for ``PATCH`` a merge patch, or a list as JSON patch.

        Returns:
            The response of ``urllib3`` with any status; its body is not read yet.

        Raises:
            Unavailable: no response, or the credentials cannot be renewed.
        """
        total, longest = (None, timeout[1]) if isinstance(timeout, tuple) else (timeout, timeout)
        began, retries, renewed = self._clock(), 0, False
        while True:
            left = None if total is None else total - (self._clock() - began)
            own = dict(query or {})
            if left is not None and isinstance(
                timeout, SharedTimeout
            ):  # 0 would mean the server's default
                own["timeout"] = f"{max(left, 0.001):.3f}s"
            credentials = self._credentials()
            rest = timeout if left is None else left
            response = self._send(method, path, rest, own, body, credentials=credentials)
            if response.status == HTTPStatus.UNAUTHORIZED:
                self._access.credentials.reject(credentials)
                if not (renewed or self._closed.is_set()) and self._has_others(credentials):
                    renewed = True
                    with suppress(*BROKEN):
                        response.drain_conn()
                    continue
            pause = _retry_after(response)
            if pause is None or retries == _MOST_RETRIES:
                return response
            if pause >= longest - (self._clock() - began):
                return response
            self._on_wait(f"{response.status} {response.reason}", pause)
            if self._wait(self._closed, pause):
                return response
            with suppress(*BROKEN):
                response.drain_conn()
            retries += 1

    def close(self) -> None:
        """End waits for a retry at once; from now on no request is sent again."""
        self._closed.set()

    @property
    def host(self) -> str:
        """URL of the API server."""
        return self._access.server

    def _credentials(self) -> Credentials:
        try:
            return self._access.credentials.current()
        except CredentialsError as error:
            raise Unavailable(f"API server: getting credentials: {error}") from error

    def _has_others(self, rejected: Credentials) -> bool:
        """Return whether there are other credentials now than the rejected ones."""
        try:
            return self._access.credentials.current() != rejected
        except CredentialsError:
            return False  # the response says more: that the API server did not accept them

    def _send(  # noqa: PLR0913 -- what a request consists of
        self,
        method: str,
        path: str,
        timeout: Timeout,
        query: Mapping[str, str],
        body: Mapping[str, Any] | list[Any] | None,
        *,
        credentials: Credentials,
    ) -> Any:
        try:
            client = self._client_for(credentials.certificate)
        except CredentialsError as error:
            raise Unavailable(f"API server: getting credentials: {error}") from error
        began = self._clock()
        url = f"{self._access.server}{path}"
        if query:
            url = f"{url}?{urlencode(sorted(query.items()))}"
        try:
            return client.request(
                method,
                url,
                headers=self._headers(method, credentials, body),
                body=body,
                _request_timeout=timeout if isinstance(timeout, tuple) else max(timeout, 0.001),
            ).response
        except ApiException as error:  # an error of TLS, not a status of the server
            cause = error.__context__
            found = cause if isinstance(cause, Exception) else error
            raise Unavailable(f"API server: {describe(found, self.host)}") from error
        except BROKEN as error:
            text = describe(error, self.host, _elapsed(timeout, self._clock() - began))
            raise Unavailable(f"API server: {text}") from error

    def _headers(
        self, method: str, credentials: Credentials, body: Mapping[str, Any] | list[Any] | None
    ) -> urllib3.HTTPHeaderDict:
        headers = urllib3.HTTPHeaderDict({"Accept": _JSON, "User-Agent": self._user_agent})
        if credentials.authorization:
            headers["Authorization"] = _wire(credentials.authorization)
        for name, value in self._access.impersonation:
            headers.add(name, _wire(value))
        if body is not None:
            patch = _JSON_PATCH if isinstance(body, list) else _MERGE_PATCH
            headers["Content-Type"] = patch if method == "PATCH" else _JSON
        return headers

    def _client_for(self, certificate: ClientCertificate | None) -> RESTClientObject:
        """Return the client with this certificate; after a change, a new one."""
        with self._lock:
            if certificate != self._certificate:
                self._client = _make_client(self._access, certificate)
                self._certificate = certificate
            return self._client


def describe(error: Exception, server: str, timeout: float = 0.0) -> str:
    """Describe in one line why a server sent no usable response, without names of classes.

    The *error* is one of ``urllib3``, or one that it raises; *server* is a URL, and *timeout* are
    the seconds for which a response was waited for, if it was; 0 if that is not known.
    """
    where, cause = urlsplit(server).netloc, _cause(error)
    if isinstance(error, urllib3.exceptions.ProxyError):
        text = f"the proxy does not connect to {where}: {reason_of(_cause(error.original_error))}"
    elif isinstance(cause, socket.gaierror):
        host = urlsplit(server).hostname
        text = f"the name {host} cannot be resolved: {reason_of(cause)}"
        if cause.errno in _NO_SUCH_HOST:
            text = f"no such host: {host}"
    elif isinstance(cause, ConnectionRefusedError):
        text = f"connection refused by {where}"
    elif isinstance(cause, urllib3.exceptions.TimeoutError | TimeoutError):
        within = f"within {timeout:.{int(timeout < 1)}f} s" if timeout else "in time"
        text = f"no response from {where} {within}"
    elif isinstance(cause, IncompleteRead):
        text = f"{where} closed the connection within a response"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        text = f"the certificate of {where} is not trusted: {cause.verify_message}"
    elif isinstance(cause, ssl.SSLError):
        tls = f"TLS: {(cause.reason or 'failed').replace('_', ' ').lower()}"
        text = f"{where}: {tls}"
        if cause.reason in _NO_TLS:
            text = f"{where} does not speak TLS, which {server} demands ({tls})"
    else:
        text = f"{where}: {reason_of(cause)}"
    return text


def _elapsed(timeout: Timeout, seconds: float) -> float:
    """Return the timeout that has elapsed: for the connection, with TLS, or for the response."""
    if not isinstance(timeout, tuple):
        return float(timeout)
    return max((each for each in timeout if each <= seconds), default=min(timeout))


def expects_https(server: str) -> str:
    """Return what is wrong if a *server*, a URL with ``http``, expects TLS."""
    return f"{urlsplit(server).netloc} expects https, and the URL of the API server is {server}"


def _cause(error: Exception) -> Exception:
    """Return the first cause that is no error of ``urllib3``, or the last one that is."""
    while isinstance(error, urllib3.exceptions.HTTPError):
        inner = next((each for each in error.args if isinstance(each, Exception)), None)
        found = inner or error.__cause__ or error.__context__
        if not isinstance(found, Exception):
            break
        error = found
    return error


def _read(access: ServerAccess | Path | None) -> ServerAccess:
    if access is None:
        return service_account()
    if isinstance(access, Path):
        # Imports PyYAML; no pod needs it for this.
        from common.apiserver.kubeconfig import load_context  # noqa: PLC0415

        return load_context([access])[0]
    return access


def _make_client(access: ServerAccess, certificate: ClientCertificate | None) -> RESTClientObject:
    """Make a client; no connection is opened yet.

    Raises:
        CredentialsError: a certificate, a key or the proxy cannot be used.
    """
    configuration = Configuration(host=access.server)
    configuration.verify_ssl = not access.insecure
    configuration.tls_server_name = access.server_name or None
    configuration.retries = False
    configuration.connection_pool_maxsize = MOST_KEPT
    # Instead of the environment's, which are read by another rule than Go's.
    configuration.proxy, configuration.no_proxy = access.proxy or None, None
    proxy = urlsplit(access.proxy)
    if proxy.scheme == "socks5":  # as with Go, the proxy resolves the name of the server
        configuration.proxy = urlunsplit(("socks5h", *proxy[1:]))
    elif proxy.username:
        login = f"{proxy.username}:{proxy.password or ''}"
        configuration.proxy_headers = urllib3.make_headers(proxy_basic_auth=unquote(login))
    try:
        client = RESTClientObject(configuration)
    except ImportError as error:
        raise CredentialsError(
            "kubeconfig: proxy-url: socks5:// needs a Python package: pip install PySocks"
        ) from error
    if access.server.startswith("https:"):
        client.pool_manager.connection_pool_kw["ssl_context"] = _context(access, certificate)
    return client


def _context(access: ServerAccess, certificate: ClientCertificate | None) -> ssl.SSLContext:
    context = create_urllib3_context()
    # Go has no such checks. Python has had them since 3.13, and they refuse CAs of older clusters.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.insecure:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # it is asked for
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.authorities:
        try:
            context.load_verify_locations(cadata=access.authorities.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise CredentialsError(
                "kubeconfig: the CA certificates are no PEM certificates"
            ) from error
    else:
        context.load_default_certs()
    if certificate is not None:
        # Python's ssl reads these from a file only.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate.certificate + b"\n" + certificate.key)
            file.flush()
            try:
                context.load_cert_chain(file.name, password=lambda: "")
            except (ssl.SSLError, ValueError) as error:
                raise CredentialsError(
                    f"{certificate.fields} are no PEM certificate with its key without a password"
                ) from error
    return context


def _retry_after(response: Any) -> float | None:
    """Return the seconds after which the server wants the request again; ``None`` if it does not.

    Like client-go, only whole seconds are read, no dates.
    """
    if response.status != 429 and response.status < 500:
        return None
    found = response.headers.get("Retry-After", "")
    return float(found) if re.fullmatch(r"\d{1,9}", found) else None


def _wire(value: str) -> str:
    """Return text that is sent as UTF-8, as by Go: ``http.client`` encodes headers as Latin-1."""
    return value.encode().decode("latin-1")
