"""The webhook configurations and policies that are installed on clusters, to apply elsewhere.

``deploy/`` has the only copy; what is read here is what an administrator applies.
"""

import base64
from pathlib import Path

from contract.names import DEFAULT_DOMAIN, Names
from simulator.manifests import Json, read_manifests

_BASE = Path(__file__).parents[1] / "deploy" / "base"
SHIPPED = _BASE / "webhook" / "configurations.yaml"


def webhook_configuration(url: str, ca: bytes, names: Names) -> Json:
    """Make the configuration of what stamps: pods when created, pods when bound.

    Args:
        url: where the webhook listens, without a path.
        ca: the authority that signed its certificate, PEM.
        names: resources that conditions ask about.
    """
    return _shipped("MutatingWebhookConfiguration", url, ca, names)


def validating_configuration(url: str, ca: bytes, names: Names) -> Json:
    """Make the configuration of what tells the authors of workloads; arguments as above."""
    return _shipped("ValidatingWebhookConfiguration", url, ca, names)


def policies_for_new_pods(names: Names) -> list[Json]:
    """Read the policies on pods as they are going to be stored, and their bindings."""
    found = [
        each
        for name in ("stamps", "records", "requests")
        for each in read_manifests(_BASE / "policies" / f"{name}.yaml")
    ]
    for each in found:
        spec = each["spec"]
        for expression in (*spec.get("matchConditions", ()), *spec.get("variables", ())):
            _rename(expression, names)
    return found


def _shipped(kind: str, url: str, ca: bytes, names: Names) -> Json:
    (found,) = (each for each in read_manifests(SHIPPED) if each["kind"] == kind)
    for webhook in found["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {
            "url": f"{url}{path}",
            "caBundle": base64.b64encode(ca).decode(),
        }
        for condition in webhook.get("matchConditions", ()):
            _rename(condition, names)
    return found


def _rename(condition: Json, names: Names) -> None:
    """Put the domain in its place, as components/domain does it."""
    condition["expression"] = condition["expression"].replace(
        f"'{DEFAULT_DOMAIN}'", f"'{names.domain}'", 1
    )
