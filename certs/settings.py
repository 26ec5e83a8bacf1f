"""The settings of a rotation, each with its flag."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from certs.errors import InvalidField
from certs.names import LONGEST_DAYS, CertificateSubject, parse_dns_name
from certs.objects import WebhookKind
from certs.replicas import Replicas, parse_replicas
from common.commandline import WholeNumber, setting

SERVING_DAYS = 90
"""Days for which a serving certificate is valid."""

CONFIGURATIONS = (
    (WebhookKind.MUTATING, "gpu-turnstile"),
    (WebhookKind.VALIDATING, "gpu-turnstile"),
)
"""The webhook configurations that call the webhook."""

LONGEST_SECONDS = 7 * 24 * 3600
_SECONDS = WholeNumber("number of seconds, such as 120", 0, LONGEST_SECONDS)
_NAME = "gpu-turnstile-webhook"


def _duration(seconds: int) -> timedelta:
    return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The objects of a rotation, and its times.

    Raises:
        InvalidField: naming the field, the value and the rule.
    """

    namespace: str = setting(
        default="gpu-turnstile", help="Namespace of both Secrets and the Service."
    )
    ca_secret: str = setting(default=f"{_NAME}-ca", help="Secret of the CA; nothing else needs it.")
    tls_secret: str = setting(default=f"{_NAME}-tls", help="Secret that the webhook mounts.")
    service: str = setting(
        default=_NAME, help="Service of the webhook; its certificate is for SERVICE.NAMESPACE.svc."
    )
    ca_days: int = setting(
        default=365,
        type=WholeNumber("number of days, such as 365", SERVING_DAYS, LONGEST_DAYS),
        help="Days for which a CA is valid.",
    )
    settle: timedelta = setting(
        default=120,
        parse=_duration,
        type=_SECONDS,
        help="Seconds that API servers may need to see a changed caBundle.",
    )
    grace: timedelta = setting(
        default=600,
        parse=_duration,
        type=_SECONDS,
        help="Seconds that webhooks may need to serve a changed Secret.",
    )
    replicas: Replicas | None = setting(
        default="",
        parse=parse_replicas,
        metavar="HOST:PORT",
        help="Before trust in an old CA is removed, check the certificate that every address of "
        "HOST serves. HOST may be a headless Service. Without it only --grace is waited for.",
    )
    secrets_only: bool = setting(
        default=False,
        is_flag=True,
        help="Write the two Secrets and no caBundle, for a server that API servers do not call.",
    )
    component: str = setting(
        default="certs",
        help="Label app.kubernetes.io/component of both Secrets, by which they are deleted.",
    )
    force: bool = setting(
        default=False, is_flag=True, help="Take over Secrets that lack our label."
    )
    kubeconfig: Path | None = setting(
        default=None,
        envvar=["GPU_TURNSTILE_CERTS_KUBECONFIG", "KUBECONFIG"],
        type=click.Path(dir_okay=False, path_type=Path),
        help="Kubeconfig file; by default the service account of the pod.",
    )

    def __post_init__(self) -> None:
        """Check the names. Those of Kubernetes objects must be host names here, too."""
        for field in ("namespace", "service", "ca_secret", "tls_secret", "component"):
            _check_name(field.replace("_", "-"), getattr(self, field))
        if self.ca_secret == self.tls_secret:
            rule = "must not be --ca-secret: webhooks must not see the CA key"
            raise InvalidField("tls-secret", self.tls_secret, rule)

    @property
    def configurations(self) -> tuple[tuple[WebhookKind, str], ...]:
        """The webhook configurations that must trust the authority."""
        return () if self.secrets_only else CONFIGURATIONS

    @property
    def subject(self) -> CertificateSubject:
        """The names in the serving certificate, and its validity."""
        return CertificateSubject((f"{self.service}.{self.namespace}.svc",), (), SERVING_DAYS)

    @property
    def names(self) -> frozenset[str]:
        """DNS names of the serving certificate."""
        return frozenset(self.subject.dns)


def _check_name(field: str, text: str) -> None:
    try:
        parsed = parse_dns_name(text)
    except InvalidField:
        parsed = ""
    if parsed != text or "*" in text or not text:
        raise InvalidField(field, text, "must be a name that Kubernetes allows")
