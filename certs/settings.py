"""The settings of a rotation: each field with its flag."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from certs.errors import InvalidField
from certs.names import LONGEST_DAYS, CertificateSubject, parse_dns_name
from certs.objects import WebhookKind
from certs.replicas import Replicas, parse_replicas
from common.commandline import setting

SERVING_DAYS = 90
"""How long a serving certificate is valid."""

CONFIGURATIONS = (
    (WebhookKind.MUTATING, "gpu-turnstile"),
    (WebhookKind.VALIDATING, "gpu-turnstile"),
)
"""The webhook configurations that call the webhook."""

LONGEST_SECONDS = 7 * 24 * 3600
_SECONDS = click.IntRange(0, LONGEST_SECONDS)
_NAME = "gpu-turnstile-webhook"


def _duration(seconds: int) -> timedelta:
    return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The objects to keep, and when what is done.

    Raises:
        InvalidField: naming the field, the value and the rule.
    """

    namespace: str = setting(
        default="gpu-turnstile", help="Namespace of both Secrets and the Service."
    )
    ca_secret: str = setting(default=f"{_NAME}-ca", help="Secret of the CA; nobody else needs it.")
    tls_secret: str = setting(default=f"{_NAME}-tls", help="Secret that the webhook mounts.")
    service: str = setting(
        default=_NAME, help="Service of the webhook: it is for SERVICE.NAMESPACE.svc."
    )
    ca_days: int = setting(
        default=365,
        type=click.IntRange(SERVING_DAYS, LONGEST_DAYS),
        help="How long a CA is valid.",
    )
    settle: timedelta = setting(
        default=120,
        parse=_duration,
        type=_SECONDS,
        help="Seconds API servers may need to see a changed caBundle.",
    )
    grace: timedelta = setting(
        default=600,
        parse=_duration,
        type=_SECONDS,
        help="Seconds webhooks may need to serve what their Secret holds.",
    )
    replicas: Replicas | None = setting(
        default="",
        parse=parse_replicas,
        metavar="HOST:PORT",
        help="Everybody behind HOST, such as a headless Service, is asked for its certificate "
        "before an old CA is dropped. Without it the time of --grace has to do.",
    )
    secrets_only: bool = setting(
        default=False,
        is_flag=True,
        help="Keep the two Secrets and no caBundle, for a server that API servers do not call.",
    )
    component: str = setting(
        default="certs",
        help="Label app.kubernetes.io/component of both Secrets, by which they are deleted.",
    )
    force: bool = setting(
        default=False, is_flag=True, help="Take over Secrets that somebody else made."
    )
    kubeconfig: Path | None = setting(
        default=None,
        envvar=["GPU_TURNSTILE_CERTS_KUBECONFIG", "KUBECONFIG"],
        type=click.Path(dir_okay=False, path_type=Path),
        help="How to reach the API server; the service account of the pod when not given.",
    )

    def __post_init__(self) -> None:
        """Check the names; those of Kubernetes objects that are allowed here are host names too."""
        for field in ("namespace", "service", "ca_secret", "tls_secret", "component"):
            _check_name(field.replace("_", "-"), getattr(self, field))
        if self.ca_secret == self.tls_secret:
            rule = "must not be --ca-secret: webhooks are to see no CA key"
            raise InvalidField("tls-secret", self.tls_secret, rule)

    @property
    def configurations(self) -> tuple[tuple[WebhookKind, str], ...]:
        """The webhook configurations that have to trust the authority."""
        return () if self.secrets_only else CONFIGURATIONS

    @property
    def subject(self) -> CertificateSubject:
        """Whom the serving certificate names, and for how long."""
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
