"""The webhook configurations of a cluster, as the API server wants them.

What asks for no GPU is kept away from the webhook by the API server itself (fact K14), so
that an outage of the webhook never stops it. A Binding does not say what its pod asks for:
all are sent, and an outage lets them pass unstamped.
"""

import base64
from typing import Any

from contract.names import Names
from simulator.manifests import Json

_WORKLOADS = {
    # entry: group, plurals, the fields that lead to the template
    "workloads": ("apps", ("deployments", "statefulsets", "daemonsets", "replicasets"), "spec"),
    "jobs": ("batch", ("jobs",), "spec"),
    "cronjobs": ("batch", ("cronjobs",), "spec.jobTemplate.spec"),
    "replicationcontrollers": ("", ("replicationcontrollers",), "spec"),
    "podtemplates": ("", ("podtemplates",), ""),
}


def webhook_configuration(url: str, ca: bytes, names: Names) -> Json:
    """Make the configuration of what stamps: pods when created, pods when bound."""
    return _configuration(
        "Mutating",
        [
            _webhook("pods", f"{url}/mutate/pods", ca)
            | {
                "rules": [_rule("", ["pods"], ["CREATE"])],
                "matchConditions": [_asks("object.spec", names)],
                "failurePolicy": "Fail",
                "timeoutSeconds": 10,
            },
            _webhook("bindings", f"{url}/mutate/bindings", ca)
            | {
                "rules": [_rule("", ["pods/binding"], ["CREATE"])],
                # Without its stamp a pod stands in line by its creation; without its
                # Binding it would not run.
                "failurePolicy": "Ignore",
                "timeoutSeconds": 2,
            },
        ],
    )


def validating_configuration(url: str, ca: bytes, names: Names) -> Json:
    """Make the configuration of what tells the authors of workloads.

    Failures are ignored: each pod is judged again when it is created.
    """
    return _configuration(
        "Validating",
        [
            _webhook(name, f"{url}/validate/workloads", ca)
            | {
                "rules": [_rule(group, list(plurals), ["CREATE", "UPDATE"])],
                "matchConditions": [_asks(_spec(steps), names)],
                "failurePolicy": "Ignore",
                "timeoutSeconds": 5,
            }
            for name, (group, plurals, steps) in _WORKLOADS.items()
        ],
    )


def _spec(steps: str) -> str:
    return ".".join(each for each in ("object", steps, "template", "spec") if each)


def _configuration(kind: str, webhooks: list[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "gpu-turnstile"},
        "webhooks": webhooks,
    }


def _webhook(name: str, url: str, ca: bytes) -> Json:
    return {
        "name": f"{name}.gpu-turnstile.io",
        "clientConfig": {"url": url, "caBundle": base64.b64encode(ca).decode()},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }


def _rule(group: str, resources: list[str], operations: list[str]) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": operations,
        "resources": resources,
    }


def _asks(spec: str, names: Names) -> dict[str, Any]:
    """Write the condition that any container under *spec* mentions one of our resources."""
    steps = spec.split(".")
    there = "".join(f"has({'.'.join(steps[:count])}) && " for count in range(2, len(steps) + 1))
    some = " || ".join(
        f"has({spec}.{field}) && {spec}.{field}.exists(c, has(c.resources) && ("
        f"has(c.resources.limits) && ({_mentions('c.resources.limits', names)}) || "
        f"has(c.resources.requests) && ({_mentions('c.resources.requests', names)})))"
        for field in ("containers", "initContainers")
    )
    return {"name": "asks-for-gpus", "expression": f"{there}({some})"}


def _mentions(listing: str, names: Names) -> str:
    return " || ".join(f"'{each}' in {listing}" for each in (names.core, names.memory))
