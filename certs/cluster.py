"""The API server, as a rotation uses it: a few objects, over :mod:`common.apiserver`.

Every request is made once, within its timeouts. One that may succeed later, and one whose answer
is lost although it may have been done, is a :class:`certs.errors.Conflict`: whoever makes it looks
at all objects again, after a pause.
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
from common.apiserver.client import object_path, quoted, refusal
from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.apiserver.rest import BROKEN, Rest
from common.errors import Unavailable

_TIMEOUTS = (5.0, 15.0)
_SKEW = timedelta(minutes=5)
_AGAIN = (("POST", 409), ("PUT", 409), ("PUT", 404), ("PATCH", 409), ("PATCH", 404), ("PATCH", 422))
"""Refusals of what has changed, or gone; of a patch 422, before versions are compared."""


class RotationApi:
    """The objects of one rotation.

    Args:
        settings: which objects, and how the API server is reached.
        now: gives the present.

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
        """Read everything.

        What is written to an object is refused if it has changed since it was read, and what is
        read after it is newer. So what is written last, trust, is read first.

        Raises:
            ClusterError: the API server refuses.
            Conflict: it does not answer.
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
            Conflict: it is there, or has changed since it was read.
            ClusterError: it is refused.
        """
        metadata = obj["metadata"]
        if "resourceVersion" in metadata:
            self.request("PUT", self._secret_path(metadata["name"]), obj)
        else:
            self.request("POST", self._secret_path(), obj)

    def write_bundle(
        self, found: Configuration, trusted: tuple[Certificate, ...], now: datetime
    ) -> None:
        """Give all webhooks of a configuration the same ``caBundle``.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: it is refused.
        """
        self.request("PATCH", _path(found.kind, found.name), bundle_patch(found, trusted, now))

    def request(self, method: str, path: str, body: Json | list[Json] | None = None) -> Json | None:
        """Make a request, and return the object of the answer; ``None`` for one that is not there.

        Raises:
            Conflict: the object has changed, or nobody answered.
            ClusterError: it is refused, or the answer is no object or by another clock.
        """
        try:
            response = self._rest.request(method, path, timeout=_TIMEOUTS, body=body)
            content = response.data
            if not 200 <= response.status < 300:
                raise refusal(response.status, str(response.reason), content)
        except Rejected as error:
            if (method, error.status) == ("GET", 404):
                return None
            kind = Conflict if (method, error.status) in _AGAIN else ClusterError
            raise kind(f"{method} {path}: {error.status} {_line(error)}") from error
        except (*BROKEN, Gone, Unavailable) as error:
            raise Conflict(f"{method} {path}: {_line(error)}") from error
        self._compare_clocks(response.headers.get("Date"))
        return _decode(content, f"{method} {path}")

    def _secret_path(self, name: str = "") -> str:
        return object_path("secrets", self.settings.namespace, name)

    def _compare_clocks(self, date: str | None) -> None:
        """Refuse to date anything by a clock that API servers do not agree with."""
        try:
            theirs = parsedate_to_datetime(date or "")
        except ValueError:
            return
        ours = self._now()
        if abs(ours - theirs) > _SKEW:
            raise ClusterError(
                f"the clock here says {ours:%Y-%m-%d %H:%M:%S} UTC and the API server's says "
                f"{theirs:%Y-%m-%d %H:%M:%S} UTC: certificates need clocks that agree"
            )


def _decode(content: bytes, what: str) -> Json:
    """Read an object; nothing of what is none is told: it may be half of a Secret."""
    try:
        decoded: Any = json.loads(content)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise ClusterError(f"{what}: the API server answered with something that is no object")
    return decoded


def _path(kind: WebhookKind, name: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind.value}s/{quoted(name)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
