"""The requests of a rotation to the API server, by :mod:`common.apiserver`.

A request is made once, within its timeouts, and again only if the API server asks for it. If it may
succeed later, or its response is lost although it may have been carried out, it raises
:class:`certs.errors.Conflict`: the caller then reads all objects again, after a pause.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from certs.errors import ClusterError, Conflict
from certs.objects import (
    Configuration,
    Json,
    ObservedObjects,
    Purpose,
    WebhookKind,
    bundle_patch,
    parse_configuration,
    parse_secret,
)
from certs.reading import Certificate
from certs.settings import Settings
from common.apiserver.client import check_status, object_path, quoted
from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.apiserver.rest import BROKEN, Rest, describe
from common.errors import Unavailable

_TIMEOUTS = (5.0, 15.0)
_SKEW = timedelta(minutes=5)
_AGAIN = (("POST", 409), ("PUT", 409), ("PUT", 404), ("PATCH", 409), ("PATCH", 404), ("PATCH", 422))
"""Rejections because an object has changed or was deleted. 422: a patch that no longer applies."""


class RotationApi:
    """Reads and writes the objects of one rotation.

    Raises:
        ClusterError: the credentials cannot be used.
    """

    def __init__(
        self, settings: Settings, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.settings = settings
        self._now = now
        try:
            self._rest = Rest(settings.kubeconfig, user_agent="gpu-turnstile-certs")
        except CredentialsError as error:
            hint = "; --kubeconfig is not given" if settings.kubeconfig is None else ""
            raise ClusterError(f"{error}{hint}") from error

    def observe(self) -> ObservedObjects:
        """Read all objects.

        A write is rejected if its object has changed since it was read, and objects that are read
        later are newer. So the objects that are written last, those with trust, are read first.

        Raises:
            ClusterError: the API server rejects a request.
            Conflict: it does not respond.
        """
        wanted = self.settings.configurations
        found = [(kind, name, self.request("GET", _path(kind, name))) for kind, name in wanted]
        ca_secret, tls_secret = self.settings.ca_secret, self.settings.tls_secret
        serving = self.request("GET", self._secret_path(tls_secret))
        authority = self.request("GET", self._secret_path(ca_secret))
        return ObservedObjects(
            parse_secret(ca_secret, Purpose.AUTHORITY, authority),
            parse_secret(tls_secret, Purpose.SERVING, serving),
            tuple(
                parse_configuration(kind, name, obj) for kind, name, obj in found if obj is not None
            ),
            tuple(f"{kind.value} {name}" for kind, name, obj in found if obj is None),
        )

    def write_secret(self, obj: Json) -> None:
        """Create a Secret, or replace the one that was read.

        Raises:
            Conflict: it exists already, or has changed since it was read.
            ClusterError: the API server rejects it.
        """
        metadata = obj["metadata"]
        if "resourceVersion" in metadata:
            self.request("PUT", self._secret_path(metadata["name"]), obj)
        else:
            self.request("POST", self._secret_path(), obj)

    def write_bundle(
        self, found: Configuration, trusted: tuple[Certificate, ...], now: datetime
    ) -> None:
        """Set the same ``caBundle`` for all webhooks of a configuration.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: the API server rejects it.
        """
        self.request("PATCH", _path(found.kind, found.name), bundle_patch(found, trusted, now))

    def request(self, method: str, path: str, body: Json | list[Json] | None = None) -> Json | None:
        """Make a request and return the object in the response; ``None`` if it does not exist.

        Raises:
            Conflict: the object has changed, or the API server does not respond.
            ClusterError: the request is rejected, the response is not an object, or clocks differ.
        """
        try:
            response = self._rest.request(method, path, timeout=_TIMEOUTS, body=body)
            content = response.data
            check_status(response, self._rest.host)
        except Rejected as error:
            if (method, error.status) == ("GET", 404):
                return None
            kind = Conflict if (method, error.status) in _AGAIN else ClusterError
            raise kind(f"{method} {path}: {error.status} {_line(error)}") from error
        except BROKEN as error:
            reason = describe(error, self._rest.host)
            raise Conflict(f"{method} {path}: {reason}") from error
        except (Gone, Unavailable) as error:
            raise Conflict(f"{method} {path}: {_line(error)}") from error
        self._compare_clocks(response.headers.get("Date"))
        return _decode(content, f"{method} {path}")

    def _secret_path(self, name: str = "") -> str:
        return object_path("secrets", self.settings.namespace, name)

    def _compare_clocks(self, date: str | None) -> None:
        """Raise ``ClusterError`` if our clock and the API server's differ too much."""
        try:
            theirs = parsedate_to_datetime(date or "")
        except ValueError:
            return
        ours = self._now()
        if abs(ours - theirs) > _SKEW:
            raise ClusterError(
                f"the clock here shows {ours:%Y-%m-%d %H:%M:%S} UTC and the API server's shows "
                f"{theirs:%Y-%m-%d %H:%M:%S} UTC: certificates need clocks that agree"
            )


def _decode(content: bytes, what: str) -> Json:
    """Read an object. An error does not quote the content: it may be a part of a Secret."""
    try:
        decoded: Any = json.loads(content)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ClusterError(f"{what}: the response of the API server is not an object")
    return decoded


def _path(kind: WebhookKind, name: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind.value}s/{quoted(name)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
