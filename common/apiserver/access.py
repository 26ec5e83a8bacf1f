"""How the API server is reached: URL, trusted CAs, proxy and credentials.

A program has this from a kubeconfig (:mod:`common.apiserver.kubeconfig`) or, in a pod, from its
service account. Values that change are read again: a token after a minute, as client-go does.
"""

import ipaddress
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Protocol
from urllib.parse import quote, urlsplit

from common.apiserver.errors import CredentialsError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token, CA certificates and namespace."""

_TOKEN_SECONDS = 60.0
# Characters of a header name besides letters and digits (RFC 9110), for keys of ``as-user-extra``.
_NAME_CHARACTERS = "!#$&'*+.^`|"


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate and its key, as PEM.

    Attributes:
        fields: where both are from, for errors.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    fields: str = "client-certificate and client-key"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What one request is sent with.

    Attributes:
        authorization: the header of this name; empty without one.
        certificate: the client certificate of its connection.
    """

    authorization: str = field(default="", repr=False)
    certificate: ClientCertificate | None = None


class CredentialSource(Protocol):
    """Where the credentials of each request come from. Safe to share between threads."""

    def current(self) -> Credentials:
        """Return the credentials for a request.

        Raises:
            CredentialsError: they cannot be read or renewed.
        """
        ...

    def reject(self, credentials: Credentials) -> None:
        """Record that the API server did not accept these credentials (401)."""
        ...


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The API server and how it is reached.

    Attributes:
        server: its URL without a slash at the end.
        credentials: source of the credentials.
        authorities: trusted CA certificates as PEM; empty for those of the system.
        insecure: whether its certificate is not verified.
        server_name: the name in its certificate, if it is not the one in the URL.
        proxy: URL of the proxy; empty for a direct connection.
        impersonation: the headers of impersonation.
    """

    server: str
    credentials: CredentialSource
    authorities: bytes = b""
    insecure: bool = False
    server_name: str = ""
    proxy: str = ""
    impersonation: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Whom the flags of a command impersonate; what is empty is taken from the kubeconfig."""

    user: str = ""
    groups: Sequence[str] = ()


NOBODY = Impersonation()


class TokenFile:
    """A bearer token in a file that another program renews. Safe to share between threads."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the token.

        Raises:
            CredentialsError: it cannot be read, or is empty.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._read_at = _read_token(path), clock()

    def current(self) -> Credentials:
        """Return the token, read again if it was read a minute ago.

        Raises:
            CredentialsError: it cannot be read, or is empty.
        """
        with self._lock:
            if self._clock() - self._read_at >= _TOKEN_SECONDS:
                self._token, self._read_at = _read_token(self._path), self._clock()
            return Credentials(f"Bearer {self._token}")

    def reject(self, credentials: Credentials) -> None:
        """Read the token again for the next request: it may have been replaced."""
        with self._lock:
            if credentials.authorization == f"Bearer {self._token}":
                self._read_at = -math.inf


def service_account(
    environment: Mapping[str, str] = os.environ,
    clock: Callable[[], float] = time.monotonic,
) -> ServerAccess:
    """Return the access that every pod is given.

    Raises:
        CredentialsError: this is no pod, or its token or CA certificates cannot be read.
    """
    where = "the pod's service account"
    host, port = (environment.get(f"KUBERNETES_SERVICE_{each}") for each in ("HOST", "PORT"))
    if not host or not port:
        raise unusable(where, "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        token = TokenFile(SERVICE_ACCOUNT / "token", clock)
        authorities = (SERVICE_ACCOUNT / "ca.crt").read_bytes()
    except (CredentialsError, OSError) as error:
        raise unusable(where, error) from error
    if not authorities.strip():
        raise unusable(where, f"{SERVICE_ACCOUNT / 'ca.crt'} is empty")
    proxy = proxy_of_environment(server, environment)
    return ServerAccess(server, token, authorities, proxy=proxy)


def own_pod() -> tuple[str, str]:
    """Return namespace and name of this program's pod; both empty outside of a pod.

    The name is that of the host, unless the pod uses the network of its node.
    """
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip(), gethostname()
    except (OSError, ValueError):
        return "", ""


def impersonation_headers(
    user: str, uid: str, groups: Sequence[str], extra: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    """Return the headers of impersonation, as client-go sends them.

    Raises:
        CredentialsError: there is no user to impersonate, or a header cannot have a value.
    """
    if not user:
        if uid or groups or extra:
            raise CredentialsError(
                "a group, UID or extra field is to be impersonated, but no user: --as is missing"
            )
        return []
    headers = [("Impersonate-User", user)]
    headers += [("Impersonate-Uid", uid)] * bool(uid)
    headers += [("Impersonate-Group", each) for each in groups]
    for key, values in sorted(extra.items()):
        name = f"Impersonate-Extra-{quote(key.lower(), safe=_NAME_CHARACTERS)}"
        headers += [(name, each) for each in values]
    for name, value in headers:
        check_header(name, value)
    return headers


def check_header(name: str, value: str) -> None:
    """Check that a value may be sent as a header; the message does not quote it.

    Raises:
        CredentialsError: it has a line break or another control character, or cannot be encoded.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CredentialsError(
            f"the header {name} cannot be sent: its value is not valid Unicode"
        ) from error
    if any((ord(each) < 32 and each != "\t") or ord(each) == 127 for each in value):
        raise CredentialsError(
            f"the header {name} cannot be sent: its value has a line break or another control "
            "character"
        )


def proxy_of_environment(server: str, environment: Mapping[str, str]) -> str:
    """Return the proxy that ``HTTPS_PROXY``, ``HTTP_PROXY`` and ``NO_PROXY`` name for a server.

    The rules are Go's: none of them is used for this machine; ``NO_PROXY`` has names with their
    subdomains, addresses, networks and ``*``, each with a port if wanted.
    """
    url = urlsplit(server)
    host, port = (url.hostname or "").lower(), url.port or (443 if url.scheme == "https" else 80)
    found = _variable(environment, f"{url.scheme}_proxy")
    if not found or is_local(host):
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for each in _variable(environment, "no_proxy").lower().replace(",", " ").split():
        if each == "*":
            return ""
        name = each.removesuffix(f":{port}") if not each.endswith("]") else each
        if address is None:
            name = name.removeprefix("*")
            bare = name.removeprefix(".")
            if host.endswith(f".{bare}") or (host == bare and not name.startswith(".")):
                return ""
        else:
            try:
                if address in ipaddress.ip_network(name.strip("[]"), strict=False):
                    return ""
            except ValueError:
                continue
    return found if "://" in found else f"http://{found}"


def is_local(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"the token file {path} cannot be read: {reason_of(error)}"
        ) from error
    if not token:
        raise CredentialsError(f"the token file {path} is empty")
    check_header("Authorization", token)
    return token


def reason_of(error: Exception) -> str:
    """Return the reason of an error in one line, without the path that ``OSError`` repeats."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def unusable(where: str, reason: object) -> CredentialsError:
    """Return the error for a kubeconfig or service account, in one line."""
    return CredentialsError(f"kubeconfig: cannot use {where}: {' '.join(str(reason).split())}")
