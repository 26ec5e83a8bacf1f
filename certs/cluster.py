"""The API server, as a rotation uses it. The only importer of ``kubernetes`` and ``urllib3``.

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
from types import TracebackType
from typing import Any, Self

import urllib3
from kubernetes import client, config

from certs.errors import ClusterError, Conflict
from certs.objects import Json, Kind
from common.backoff import Backoff, by_chance

_TIMEOUTS = (5.0, 15.0)
_PATIENCE_S = 60.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_SKEW = timedelta(minutes=5)
_NOT_FOUND, _CONFLICT, _INVALID, _TOO_MANY = 404, 409, 422, 429

# What the client lets through when a kubeconfig is bad, its YAML parser's errors included.
_UNUSABLE = (
    config.ConfigException,
    config.kube_config.yaml.YAMLError,  # type: ignore[attr-defined]  # no re-export meant
    OSError,
    ValueError,
    TypeError,
)


class _Rejected(Exception):
    """The API server understood and said no."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status} {message}")


class _Unavailable(Exception):
    """No usable answer this time.

    Attributes:
        after_s: how long the API server asks to be left alone.
    """

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        self.after_s = after_s
        super().__init__(message)


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
    """A client for one namespace; a context manager.

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
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        except _UNUSABLE as error:
            where = kubeconfig or "the pod's service account, and --kubeconfig is not given"
            reason = " ".join(str(error).split())
            raise ClusterError(f"kubeconfig: cannot use {where}: {reason}") from error
        configuration.retries = False
        self._client = client.ApiClient(configuration)
        self._client.user_agent = "gpu-turnstile-certs"  # audit logs name who asked
        self._core = client.CoreV1Api(self._client)
        self._admission = client.AdmissionregistrationV1Api(self._client)
        self._namespace = namespace
        self._times = times or Time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.rest_client.pool_manager.clear()
        self._client.close()

    def get_secret(self, name: str) -> Json | None:
        """Read a Secret; ``None`` when there is none.

        Raises:
            ClusterError: no usable answer.
        """
        return self._get(
            self._secret(name), self._core.read_namespaced_secret, name, self._namespace
        )

    def create_secret(self, obj: Json) -> None:
        """Create a Secret.

        Raises:
            Conflict: it is there.
            ClusterError: it is refused.
        """
        what = f"{self._secret(str(obj['metadata']['name']))}: create"
        try:
            self._once(what, self._core.create_namespaced_secret, self._namespace, obj)
        except (_Rejected, _Unavailable) as error:
            raise _translated(what, error, {_CONFLICT}) from error

    def replace_secret(self, name: str, obj: Json) -> None:
        """Replace a Secret.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: it is refused.
        """
        what = f"{self._secret(name)}: update"
        try:
            self._once(what, self._core.replace_namespaced_secret, name, self._namespace, obj)
        except (_Rejected, _Unavailable) as error:
            raise _translated(what, error, {_CONFLICT, _NOT_FOUND}) from error

    def get_configuration(self, kind: Kind, name: str) -> Json | None:
        """Read a webhook configuration; ``None`` when there is none.

        Raises:
            ClusterError: no usable answer.
        """
        read = {
            Kind.MUTATING: self._admission.read_mutating_webhook_configuration,
            Kind.VALIDATING: self._admission.read_validating_webhook_configuration,
        }
        return self._get(f"{kind.value} {name}", read[kind], name)

    def patch_configuration(self, kind: Kind, name: str, patch: list[Json]) -> None:
        """Apply a JSON patch to a webhook configuration.

        Raises:
            Conflict: it has changed since it was read.
            ClusterError: it is refused.
        """
        write = {
            Kind.MUTATING: self._admission.patch_mutating_webhook_configuration,
            Kind.VALIDATING: self._admission.patch_validating_webhook_configuration,
        }
        what = f"{kind.value} {name}: patch"
        content = "application/json-patch+json"
        try:
            self._once(what, write[kind], name, patch, _content_type=content)
        except (_Rejected, _Unavailable) as error:
            # A path of the patch may be gone: that is refused before versions are compared.
            raise _translated(what, error, {_CONFLICT, _NOT_FOUND, _INVALID}) from error

    def _secret(self, name: str) -> str:
        return f"secret {self._namespace}/{name}"

    def _get(self, what: str, method: Callable[..., Any], *args: str) -> Json | None:
        try:
            return self._patiently(f"{what}: get", method, *args)
        except _Rejected as error:
            if error.status == _NOT_FOUND:
                return None
            raise _translated(f"{what}: get", error, set()) from error

    def _patiently(self, what: str, method: Callable[..., Any], *args: str) -> Json:
        """Make a request, again and again while nobody answers.

        Raises:
            _Rejected: the API server said no.
            ClusterError: it did not answer in time, or with something that is no object.
        """
        end = self._times.monotonic() + _PATIENCE_S
        pauses = Backoff(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S, jitter=self._times.jitter)
        while True:
            try:
                return self._once(what, method, *args)
            except _Unavailable as error:
                wait = max(pauses.next(), error.after_s)
                if self._times.monotonic() + wait > end:
                    raise ClusterError(f"{what}: {error}") from error
            self._times.sleep(wait)

    def _once(self, what: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Json:
        """Make a request; translate every foreign exception here and nowhere else.

        Raises:
            _Rejected: the API server said no.
            _Unavailable: it did not answer.
            ClusterError: it answered with something that is no object.
        """
        try:
            response = method(*args, _preload_content=False, _request_timeout=_TIMEOUTS, **kwargs)
            decoded = json.loads(response.data)
        except client.ApiException as error:
            status = error.status or 0
            if 400 <= status < 500 and status != _TOO_MANY:
                raise _Rejected(status, _message(error)) from error
            after = _seconds((error.headers or {}).get("Retry-After"))
            raise _Unavailable(f"{status} {_message(error)}", after) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Unavailable(f"API server: {error}") from error
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


def _translated(what: str, error: _Rejected | _Unavailable, conflicts: set[int]) -> ClusterError:
    # Without an answer nobody knows whether it was done: as after a conflict, look again.
    again = isinstance(error, _Unavailable) or error.status in conflicts
    return (Conflict if again else ClusterError)(f"{what}: {error}")


def _message(error: client.ApiException) -> str:
    try:
        text = str(json.loads(error.body or "")["message"])
    except (TypeError, ValueError, KeyError):
        text = str(error.reason)
    return " ".join(text.split())


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0
