"""Runs a credential plugin of a kubeconfig (``users[].user.exec``), as client-go does.

The formats are those of the API group ``client.authentication.k8s.io``, as JSON: client-go reads
YAML too. An error never quotes what a plugin has printed: it may be a part of a credential.

client-go runs a plugin for each request that lacks credentials. Here a command has several requests
at once, and each run may ask the user for a password: a failure stands for a minute.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from common.apiserver.access import ClientCertificate, Credentials, check_header, reason_of
from common.apiserver.errors import CredentialsError
from contract.fields import Fields

API_VERSIONS = tuple(f"client.authentication.k8s.io/{each}" for each in ("v1", "v1beta1"))
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

_KIND = "ExecCredential"
_RERUN_AFTER = timedelta(minutes=1)
"""Shortest time from a run to the next, unless its credentials have expired since."""

# RFC 3339, as Go's time package reads it: Python accepts other forms of ISO 8601, too.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class _PrintedFields(Fields):
    """The fields of one object that a plugin has printed; an error never has the value."""

    TEXT, OBJECT = "must be a string", "must be an object"

    def error(self, name: str, rule: str) -> Exception:
        """Return the error for one field."""
        return self._error(f"{self.at(name)} {rule}")

    def some(self, name: str) -> str:
        """Return a string that can be encoded; empty if it is absent."""
        return self.some_text(name) if name in self else ""

    def time(self, name: str) -> datetime | None:
        """Return a time; ``None`` if it is absent."""
        if self.raw(name) is None:
            return None
        text = self.text(name)
        try:
            if _TIME.fullmatch(text):
                return datetime.fromisoformat(text)
        except ValueError:  # such as a 13th month
            pass
        raise self.error(name, "must be a time such as 2026-01-31T12:00:00Z")


@dataclass(frozen=True, slots=True)
class ExecSettings:
    """The fields of ``exec``.

    Attributes:
        command: the program; a path, or a name that is searched for in ``$PATH``.
        arguments: its arguments.
        environment: variables besides those of this program.
        api_version: one of ``API_VERSIONS``.
        install_hint: what to do if the program is not installed.
        interactive_mode: one of ``INTERACTIVE_MODES``.
        cluster: what the program is told about the cluster; ``None`` for nothing.
    """

    command: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    api_version: str
    install_hint: str
    interactive_mode: str
    cluster: Mapping[str, Any] | None


class ExecPlugin:
    """Credentials from a program, which is run again when they expire or are rejected.

    If it fails, or returns credentials that have expired or are rejected at once, that stands for a
    minute.
    """

    def __init__(
        self, settings: ExecSettings, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Prepare; the program is not run yet."""
        self._settings = settings
        self._now = now
        # Also held while the program runs: it may ask the user, and is run once for all threads.
        self._lock = threading.Lock()
        self._result: Credentials | CredentialsError | None = None
        self._expires: datetime | None = None
        self._ended: datetime | None = None
        self._is_good = False  # unless it failed, or its credentials were rejected or had expired

    def current(self) -> Credentials:
        """Return the credentials; run the program if there are none or they have expired.

        Raises:
            CredentialsError: the program cannot be run, fails, or returns no credentials.
        """
        with self._lock:
            result = self._result
            if result is None or self._is_due():
                self._result = result = self._renew()
        if isinstance(result, CredentialsError):
            raise CredentialsError(str(result)) from result
        return result

    def reject(self, credentials: Credentials) -> None:
        """Run the program again for a later request, unless another thread did."""
        with self._lock:
            if self._result == credentials:
                self._is_good = False

    def _is_due(self) -> bool:
        now = self._now()
        if self._is_good:
            return self._expires is not None and now > self._expires
        # The system's clock may have been set back.
        return self._ended is None or not timedelta() <= now - self._ended < _RERUN_AFTER

    def _renew(self) -> Credentials | CredentialsError:
        self._expires, self._is_good = None, False
        result: Credentials | CredentialsError
        try:
            result, self._expires = self._run()
        except CredentialsError as error:
            result = error
        else:
            self._is_good = self._expires is None or self._now() <= self._expires
        self._ended = self._now()
        return result

    def _run(self) -> tuple[Credentials, datetime | None]:
        settings = self._settings
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if settings.interactive_mode == "Always" and not is_terminal:
            raise self._failed("needs a terminal, and standard input is none")
        interactive = is_terminal and settings.interactive_mode != "Never"
        spec: dict[str, Any] = {"interactive": interactive}
        if settings.cluster is not None:
            spec["cluster"] = settings.cluster
        info = {"kind": "ExecCredential", "apiVersion": settings.api_version, "spec": spec}
        try:
            done = subprocess.run(  # noqa: S603 -- the user's own kubeconfig names it
                [settings.command, *settings.arguments],
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={
                    **os.environ,
                    **settings.environment,
                    "KUBERNETES_EXEC_INFO": json.dumps(info),
                },
                check=False,
            )
        except FileNotFoundError as error:
            hint = settings.install_hint
            raise self._failed(f"is not installed{f': {hint}' if hint else ''}") from error
        except (OSError, ValueError) as error:
            raise self._failed(f"cannot be run: {reason_of(error)}") from error
        if done.returncode:
            raise self._failed(f"failed with exit code {done.returncode}")
        return self._parse(done.stdout)

    def _parse(self, content: bytes) -> tuple[Credentials, datetime | None]:
        try:
            printed = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._failed("printed no JSON") from error
        if not isinstance(printed, dict):
            raise self._failed("printed no JSON object")
        fields = _PrintedFields("", printed, self._unusable)
        if fields.text("kind") not in ("", _KIND):  # client-go takes one without it
            raise fields.error("kind", f"must be {_KIND}")
        if fields.text("apiVersion") != self._settings.api_version:
            raise fields.error(
                "apiVersion", f"must be {self._settings.api_version}, as in the kubeconfig"
            )
        if fields.mapping("status") is None:
            raise fields.error("status", "is missing")
        status = fields.child("status")
        token, certificate, key = map(
            status.some, ("token", "clientCertificateData", "clientKeyData")
        )
        authorization = f"Bearer {token}" if token else ""
        try:
            check_header("Authorization", authorization)
        except CredentialsError as error:
            raise status.error("token", "has a line break or another control character") from error
        if bool(certificate) != bool(key):
            given, needed = ("clientCertificateData", "clientKeyData")[:: 1 if certificate else -1]
            raise status.error(given, f"needs status.{needed}")
        if not token and not certificate:
            raise fields.error("status", "has neither token nor clientCertificateData")
        pair = None
        if certificate:
            names = f"clientCertificateData and clientKeyData of {self._named}"
            pair = ClientCertificate(certificate.encode(), key.encode(), names)
        return Credentials(authorization, pair), status.time("expirationTimestamp")

    @property
    def _named(self) -> str:
        return f"the credential plugin {self._settings.command}"

    def _unusable(self, problem: str) -> CredentialsError:
        return self._failed(f"returned unusable credentials: {problem}")

    def _failed(self, how: str) -> CredentialsError:
        return CredentialsError(f"{self._named} {how}")
