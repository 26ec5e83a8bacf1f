"""The state of all objects and the next step of a rotation, as text for a terminal. Pure."""

from collections.abc import Iterator
from datetime import datetime

from certs.errors import Foreign
from certs.objects import Configuration, ObservedObjects, Origin, Secret
from certs.reading import Certificate, is_issued_by
from certs.rotation import decide, event
from certs.settings import Settings


def as_table(observed: ObservedObjects, settings: Settings, now: datetime) -> str:
    """Format the report as lines for a terminal."""
    rows = list(_rows(observed))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows]
    try:
        message, fields = event(decide(observed, settings, now=now))
        following = ", ".join([message, *(f"{key}: {value}" for key, value in fields.items())])
    except Foreign as error:
        following = f"refused: {error}"
    return "\n".join([*lines, "", f"next: {following}"])


def _rows(observed: ObservedObjects) -> Iterator[tuple[str, str, str]]:
    yield "OBJECT", "STATE", "CERTIFICATE"
    for secret in (observed.authority, observed.serving):
        yield f"secret {secret.name}", secret.origin.value, _described(secret)
    for each in observed.configurations:
        accepts = _accepts(each, observed.serving.certificate)
        trusted = {found.fingerprint[:16] for bundle in each.bundles for found in bundle}
        state = "accepts" if accepts else "does not accept"
        yield str(each), state, f"trusts {', '.join(sorted(trusted)) or 'nobody'}"
    for missing in observed.missing:
        yield missing, "absent", ""


def _described(secret: Secret) -> str:
    found = secret.certificate
    if found is None:
        return "" if secret.origin is Origin.ABSENT else secret.problem
    return f"{found}, renewed from {found.renew_at:%Y-%m-%d %H:%M} UTC"


def _accepts(configuration: Configuration, serving: Certificate | None) -> bool:
    """Return whether API servers accept the serving certificate at every webhook."""
    return serving is not None and all(
        any(is_issued_by(serving, each) for each in bundle) for bundle in configuration.bundles
    )
