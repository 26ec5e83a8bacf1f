"""The webhook configurations that are installed on clusters, pointed at a webhook elsewhere.

``deploy/`` has the only copy; what is read here is what an administrator applies.
"""

import base64
from pathlib import Path

from contract.names import DEFAULT_DOMAIN, Names
from simulator.manifests import Json, read_manifests

SHIPPED = Path(__file__).parents[1] / "deploy" / "base" / "webhook" / "configurations.yaml"


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


def _shipped(kind: str, url: str, ca: bytes, names: Names) -> Json:
    (found,) = (each for each in read_manifests(SHIPPED) if each["kind"] == kind)
    for webhook in found["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {
            "url": f"{url}{path}",
            "caBundle": base64.b64encode(ca).decode(),
        }
        for condition in webhook.get("matchConditions", ()):
            # As components/domain does it.
            condition["expression"] = condition["expression"].replace(
                f"'{DEFAULT_DOMAIN}'", f"'{names.domain}'", 1
            )
    return found
