"""The API server, as a rotation uses it: the objects it needs, over :mod:`common.apiserver`.

Every request has its timeouts. A read that meets what may pass by itself (no connection,
5xx, 429) is tried again for a while. A write is not: its answer may be lost although it was
done, and it may carry the time it was made at; whoever makes one looks again first.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeAlias

from certs.errors import ClusterError, Conflict
from certs.objects import Json, Kind
from common.apiserver.client import object_path, quoted, refusal
from common.apiserver.errors import CredentialsError, Gone, Rejected
from common.apiserver.rest import BROKEN, Rest
from common.backoff import Backoff, by_chance
from common.errors import Unavailable

_TIMEOUTS = (5.0, 15.0)
_PATIENCE_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_SKEW = timedelta(minutes=5)
_NOT_FOUND, _CONFLICT, _INVALID = 404, 409, 422

_Failure: TypeAlias = Gone | Rejected | Unavailable


@dataclass(frozen=True, slots=True)
class Time:
    """The clocks and the pauses of a client.

    Attributes:
        now: gives the present.
        monotonic: gives seconds, for deadlines.
        sleep: waits for seconds.
        jitter: gives 0 to 1, so that two clients do not try again together.
    """

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = by_chance


class ApiCluster:
    """A client for one namespace.

    Args:
        namespace: where the Secrets are.
        kubeconfig: a kubeconfig file; ``None`` for the service account of the pod.
        times: clocks.

    Raises:
        ClusterError: the credentials cannot be used.
    """

    def __init__(
        self, namespace: str, kubeconfig: Path | None = None, *, times: Time | None = None
    ) -> None:
        try:
            self._rest = Rest(kubeconfig, user_agent="gpu-turnstile-certs")
        except CredentialsError as error:
            hint = "; --kubeconfig is not given" if kubeconfig is None else ""
            raise ClusterError(f"{error}{hint}") from error
        self._namespace = namespace
        self._times = times or Time()

    def get_secret(self, name: str) -> Json | None:
        """Read a Secret; ``None`` when there is none.

        Raises:
            ClusterError: no usable answer.
        """
        return self._read(self._secret(name), self._secret_path(name))

    def create_secret(self, obj: Json) -> None:
        """Create a Secret.

        Raises:
            Conflict: it is there.
            ClusterError: it is refused.
        """
        what = f"{self._secret(str(obj['metadata']['name']))}: create"
        self._write(what, "POST", self._secret_path(), obj, {_CONFLICT})

    def replace_secret(self, name: str, obj: Json) -> None:
        """Replace a Secret.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: it is refused.
        """
        what = f"{self._secret(name)}: update"
        self._write(what, "PUT", self._secret_path(name), obj, {_CONFLICT, _NOT_FOUND})

    def get_configuration(self, kind: Kind, name: str) -> Json | None:
        """Read a webhook configuration; ``None`` when there is none.

        Raises:
            ClusterError: no usable answer.
        """
        return self._read(f"{kind.value} {name}", _configuration_path(kind, name))

    def patch_configuration(self, kind: Kind, name: str, patch: list[Json]) -> None:
        """Apply a JSON patch to a webhook configuration.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: it is refused.
        """
        # A path of the patch may be gone: that is refused before versions are compared.
        conflicts = {_CONFLICT, _NOT_FOUND, _INVALID}
        what = f"{kind.value} {name}: patch"
        self._write(what, "PATCH", _configuration_path(kind, name), patch, conflicts)

    def _secret(self, name: str) -> str:
        return f"secret {self._namespace}/{name}"

    def _secret_path(self, name: str = "") -> str:
        return object_path("secrets", self._namespace, name)

    def _read(self, what: str, path: str) -> Json | None:
        """Get an object, again and again while nobody answers; ``None`` when there is none.

        Raises:
            ClusterError: no usable answer.
        """
        what = f"{what}: get"
        end = self._times.monotonic() + _PATIENCE_S
        pauses = Backoff(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, jitter=self._times.jitter)
        while True:
            try:
                return self._request(what, "GET", path)
            except Unavailable as error:
                wait = pauses.next()
                if self._times.monotonic() + wait > end:
                    raise ClusterError(f"{what}: {_text(error)}") from error
            except (Gone, Rejected) as error:
                if isinstance(error, Rejected) and error.status == _NOT_FOUND:
                    return None
                raise ClusterError(f"{what}: {_text(error)}") from error
            self._times.sleep(wait)

    def _write(
        self, what: str, method: str, path: str, body: Json | list[Json], conflicts: set[int]
    ) -> None:
        """Make a write, once.

        Raises:
            Conflict: an answer in *conflicts*, or none: nobody knows whether it was done.
            ClusterError: it is refused.
        """
        try:
            self._request(what, method, path, body)
        except (Gone, Rejected, Unavailable) as error:
            again = isinstance(error, Unavailable) or (
                isinstance(error, Rejected) and error.status in conflicts
            )
            raise (Conflict if again else ClusterError)(f"{what}: {_text(error)}") from error

    def _request(
        self, what: str, method: str, path: str, body: Json | list[Json] | None = None
    ) -> Json:
        """Make a request.

        Raises:
            Gone: 410.
            Rejected: the API server said no.
            Unavailable: it did not answer.
            ClusterError: it answered with something that is no object, or by another clock.
        """
        response = self._rest.request(method, path, timeout=_TIMEOUTS, body=body)
        try:
            content = response.data
        except BROKEN as error:
            raise Unavailable(f"API server: {error}") from error
        if not 200 <= response.status < 300:
            raise refusal(response.status, str(response.reason), content)
        try:
            decoded = json.loads(content)
        except ValueError:
            # Nothing of the answer is told: it may be half of a Secret.
            decoded = None
        if not isinstance(decoded, dict):
            raise ClusterError(f"{what}: the API server answered with something that is no object")
        self._compare_clocks(response.headers.get("Date"))
        return decoded

    def _compare_clocks(self, date: str | None) -> None:
        """Refuse to date anything by a clock that API servers do not agree with."""
        if date is None:
            return
        try:
            theirs = parsedate_to_datetime(date)
        except ValueError:
            return
        ours = self._times.now()
        if abs(ours - theirs) > _SKEW:
            raise ClusterError(
                f"the clock here says {ours:%Y-%m-%d %H:%M:%S} UTC and the API server's says "
                f"{theirs:%Y-%m-%d %H:%M:%S} UTC: certificates need clocks that agree"
            )


def _configuration_path(kind: Kind, name: str) -> str:
    return f"/apis/admissionregistration.k8s.io/v1/{kind.value}s/{quoted(name)}"


def _text(error: _Failure) -> str:
    text = " ".join(str(error).split())
    return f"{error.status} {text}" if isinstance(error, Rejected) else text
