"""The shipped webhook configurations, for tests and simulated clusters.

They are read from ``deploy/``, so they are the same as those that administrators apply.
"""

import base64
from pathlib import Path

from simulator.manifests import Json, read_manifests

SHIPPED = Path(__file__).parents[1] / "deploy" / "base" / "webhook" / "configurations.yaml"
_MISSPELT = "misspelt.gpu-turnstile.io"


def simulated_configurations(url: str, ca: bytes) -> list[Json]:
    """Return all configurations for the simulated API server, which ignores matchConditions.

    The webhook for misspelt names is left out: it gets only the pods that matchConditions keep
    from the previous webhook. Without matchConditions, the previous webhook gets all pods.
    """
    stamping = _shipped("MutatingWebhookConfiguration", url, ca)
    stamping["webhooks"] = [each for each in stamping["webhooks"] if each["name"] != _MISSPELT]
    return [stamping, _shipped("ValidatingWebhookConfiguration", url, ca)]


def _shipped(kind: str, url: str, ca: bytes) -> Json:
    (found,) = (each for each in read_manifests(SHIPPED) if each["kind"] == kind)
    set_address(found, url, ca)
    return found


def set_address(configuration: Json, url: str, ca: bytes) -> None:
    """Replace the Service of every webhook of a configuration.

    Args:
        configuration: a webhook configuration as shipped; it is changed.
        url: the webhook's URL without a path.
        ca: PEM of the CA that signed the webhook's certificate.
    """
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {
            "url": f"{url}{path}",
            "caBundle": base64.b64encode(ca).decode(),
        }
