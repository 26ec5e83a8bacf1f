"""Runs a credential plugin of a kubeconfig (``users[].user.exec``), as client-go does.

The formats are those of the API group ``client.authentication.k8s.io``. An error never quotes what
a plugin has printed: it may be a part of a credential.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from common.apiserver.access import ClientCertificate, Credentials, check_header, reason_of
from common.apiserver.errors import CredentialsError

API_VERSIONS = tuple(f"client.authentication.k8s.io/{each}" for each in ("v1", "v1beta1"))
INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")


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
    """Credentials from a program, which is run again when they expire or are rejected."""

    def __init__(
        self, settings: ExecSettings, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Prepare; the program is not run yet."""
        self._settings = settings
        self._now = now
        # Also held while the program runs: it may ask the user, and is run once for all threads.
        self._lock = threading.Lock()
        self._cached: Credentials | None = None
        self._expires: datetime | None = None

    def current(self) -> Credentials:
        """Return the credentials; run the program if there are none or they have expired.

        Raises:
            CredentialsError: the program cannot be run, fails, or returns no credentials.
        """
        with self._lock:
            expired = self._expires is not None and self._now() > self._expires
            if self._cached is None or expired:
                self._cached, self._expires = self._run()
            return self._cached

    def reject(self, credentials: Credentials) -> None:
        """Run the program again for the next request, unless another thread did."""
        with self._lock:
            if self._cached == credentials:
                self._cached = None

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
            found = json.loads(content)
            kind, version, status = found["kind"], found["apiVersion"], found["status"]
            token, certificate, key, expires = (
                status.get(each) or ""
                for each in (
                    "token",
                    "clientCertificateData",
                    "clientKeyData",
                    "expirationTimestamp",
                )
            )
            pair = ClientCertificate(certificate.encode(), key.encode())
            until = datetime.fromisoformat(expires) if expires else None
            authorization = "Bearer " + token if token else ""
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._failed("printed no ExecCredential") from error
        if (kind, version) != ("ExecCredential", self._settings.api_version):
            raise self._failed(f"did not return an ExecCredential of {self._settings.api_version}")
        if until is not None and until.tzinfo is None:
            raise self._failed("returned an expirationTimestamp without a time zone")
        if bool(pair.certificate) != bool(pair.key):
            raise self._failed("returned only one of certificate and key")
        if not authorization and not pair.key:
            raise self._failed("returned neither a token nor a certificate")
        check_header("Authorization", authorization)
        return Credentials(authorization, pair if pair.key else None), until

    def _failed(self, how: str) -> CredentialsError:
        return CredentialsError(f"the credential plugin {self._settings.command} {how}")
