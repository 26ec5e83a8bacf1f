"""The settings of a rotation. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from certs.errors import InvalidField
from certs.names import LONGEST_DAYS, Subject, parse_dns_name, parse_subject
from certs.objects import Kind

LONGEST_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Policy:
    """The wishes of the operator.

    Attributes:
        names: DNS names of the serving certificate.
        settle: how long API servers may need to see a changed configuration.
        grace: how long webhooks may need to serve what their Secret holds.
        asks: whether webhooks are asked what they serve.
        force: take over Secrets that somebody else made.
    """

    names: frozenset[str]
    settle: timedelta
    grace: timedelta
    asks: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The objects to keep, and their lives.

    Attributes:
        namespace: of both Secrets.
        ca_secret: name of the Secret of the authority.
        tls_secret: name of the Secret that the webhook mounts.
        configurations: kinds and names of the webhook configurations; none where nobody but the
            readers of ``ca.crt`` has to trust the authority.
        subject: whom the serving certificate names, and for how long.
        ca_days: how long an authority is valid.
        policy: when what is done.
        component: the label by which both Secrets are deleted.
    """

    namespace: str
    ca_secret: str
    tls_secret: str
    configurations: tuple[tuple[Kind, str], ...]
    subject: Subject
    ca_days: int
    policy: Policy
    component: str = "certs"


def parse_settings(  # noqa: PLR0913 - one argument a flag
    *,
    namespace: str,
    ca_secret: str,
    tls_secret: str,
    service: str,
    dns: tuple[str, ...],
    mutating: tuple[str, ...],
    validating: tuple[str, ...],
    days: int,
    ca_days: int,
    settle: int,
    grace: int,
    asks: bool,
    force: bool,
    secrets_only: bool = False,
    component: str = "certs",
) -> Settings:
    """Check the flags of the command line.

    Raises:
        InvalidField: naming the field, the value and the rule.
    """
    _check_name("namespace", namespace)
    _check_name("service", service)
    _check_name("ca-secret", ca_secret)
    _check_name("tls-secret", tls_secret)
    _check_name("component", component)
    if ca_secret == tls_secret:
        raise InvalidField(
            "tls-secret", tls_secret, "must not be --ca-secret: webhooks are to see no CA key"
        )
    configurations = (
        *_configurations("mutating", Kind.MUTATING, mutating),
        *_configurations("validating", Kind.VALIDATING, validating),
    )
    if secrets_only:
        configurations = ()
    subject = parse_subject([f"{service}.{namespace}.svc", *dns], [], days)
    if not days <= ca_days <= LONGEST_DAYS:
        rule = f"must be --days ({days}) to {LONGEST_DAYS}"
        raise InvalidField("ca-days", ca_days, rule)
    policy = Policy(
        frozenset(subject.dns),
        _seconds("settle", settle),
        _seconds("grace", grace),
        asks,
        force,
    )
    return Settings(
        namespace,
        ca_secret,
        tls_secret,
        configurations,
        subject,
        ca_days,
        policy,
        component,
    )


def _configurations(field: str, kind: Kind, names: Iterable[str]) -> Iterable[tuple[Kind, str]]:
    for name in dict.fromkeys(names):
        _check_name(field, name)
        yield kind, name


def _check_name(field: str, text: str) -> None:
    """Check a name of a Kubernetes object; those allowed here are host names too."""
    try:
        parsed = parse_dns_name(text)
    except InvalidField:
        parsed = ""
    if parsed != text or "*" in text or not text:
        raise InvalidField(field, text, "must be a name that Kubernetes allows")


def _seconds(field: str, seconds: int) -> timedelta:
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise InvalidField(field, seconds, f"must be 0 to {LONGEST_SECONDS} seconds")
    return timedelta(seconds=seconds)
