"""The webhook configurations that are installed on clusters, to apply elsewhere.

``deploy/`` has the only copy; what is read here is what an administrator applies.
"""

import base64
from pathlib import Path

from simulator.manifests import Json, read_manifests

SHIPPED = Path(__file__).parents[1] / "deploy" / "base" / "webhook" / "configurations.yaml"
_MISSPELT = "misspelt.gpu-turnstile.io"


def webhook_configuration(url: str, ca: bytes) -> Json:
    """Make the configuration of what stamps: pods when created, pods when bound.

    *url* is without a path; *ca*, PEM, has signed the webhook's certificate.
    """
    return _shipped("MutatingWebhookConfiguration", url, ca)


def simulated_configurations(url: str, ca: bytes) -> list[Json]:
    """Make all configurations for the simulated API server, which asks no matchConditions.

    The entry for names that are nearly ours has the pods that conditions keep from the one before
    it; here they meet that one.
    """
    stamping = webhook_configuration(url, ca)
    stamping["webhooks"] = [each for each in stamping["webhooks"] if each["name"] != _MISSPELT]
    return [stamping, _shipped("ValidatingWebhookConfiguration", url, ca)]


def _shipped(kind: str, url: str, ca: bytes) -> Json:
    (found,) = (each for each in read_manifests(SHIPPED) if each["kind"] == kind)
    for webhook in found["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {
            "url": f"{url}{path}",
            "caBundle": base64.b64encode(ca).decode(),
        }
    return found
