"""Reports of the objects and of the actions, for people and for programs. Pure."""

import json
from collections.abc import Iterator
from datetime import datetime

from certs.errors import Foreign
from certs.objects import Configuration, Json, Origin, Secret, write_stamp
from certs.observing import Observed
from certs.reading import Certificate, is_issued_by
from certs.rotation import decide
from certs.settings import Policy


def as_json(observed: Observed, policy: Policy, now: datetime) -> str:
    """Write everything as one JSON object."""
    return json.dumps(
        {
            "secrets": [
                {
                    "name": secret.name,
                    "origin": secret.origin.value,
                    "problem": secret.problem,
                    "certificate": _certificate(secret.certificate),
                }
                for secret in (observed.authority, observed.serving)
            ],
            "configurations": [
                {
                    "kind": each.kind.value,
                    "name": each.name,
                    "trusts": [
                        [certificate.fingerprint for certificate in bundle]
                        for bundle in each.bundles
                    ],
                    "acceptsServing": _accepts(each, observed.serving.certificate),
                }
                for each in observed.configurations
            ],
            "missing": list(observed.missing),
            "next": next_step(observed, policy, now),
        },
        indent=2,
    )


def as_table(observed: Observed, policy: Policy, now: datetime) -> str:
    """Write everything as lines for a terminal."""
    rows = list(_rows(observed))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in rows]
    return "\n".join([*lines, "", f"next: {next_step(observed, policy, now)}"])


def next_step(observed: Observed, policy: Policy, now: datetime) -> str:
    """Return what a rotation would do next."""
    try:
        return str(decide(observed, policy, now=now))
    except Foreign as error:
        return f"refused: {error}"


def _rows(observed: Observed) -> Iterator[tuple[str, str, str]]:
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


def _certificate(found: Certificate | None) -> Json | None:
    if found is None:
        return None
    return {
        "fingerprint": found.fingerprint,
        "names": sorted(found.names),
        "notBefore": write_stamp(found.not_before),
        "notAfter": write_stamp(found.not_after),
        "renewAt": write_stamp(found.renew_at),
    }


def _accepts(configuration: Configuration, serving: Certificate | None) -> bool:
    """Return whether API servers accept the serving certificate at every webhook."""
    return serving is not None and all(
        any(is_issued_by(serving, each) for each in bundle) for bundle in configuration.bundles
    )
