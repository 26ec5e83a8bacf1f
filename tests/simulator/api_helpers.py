"""Pods, a TLS webhook and waiting, for the tests of the API server and the scheduler."""

import base64
import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trustme

from simulator.client import Json
from tests.scripted import answering

CORE = "tencent.com/vcuda-core"
PODS = "/api/v1/namespaces/default/pods"


def pod(name: str = "p", *, limits: Mapping[str, object] | None = None, **spec: Any) -> Json:
    """Make a pod with one container."""
    container: Json = {"name": "main", "image": "none"}
    if limits is not None:
        container["resources"] = {"limits": dict(limits)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def node(name: str = "n1", **allocatable: object) -> Json:
    """Make a node; ``core`` is short for the resource of the tests."""
    resources = {CORE if key == "core" else key: value for key, value in allocatable.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": resources, "capacity": resources},
    }


Respond = Callable[[Json], Json]


@dataclass
class Hook:
    """A webhook of a test: its address, its received reviews, and its response."""

    port: int
    ca_bundle: str
    respond: Respond
    reviews: list[Json] = field(default_factory=list)
    status: int = 200
    raw: bytes | None = None

    def configuration(self, kind: str = "Mutating", /, **webhook: Any) -> Json:
        """Make a configuration with one webhook that is called for new pods."""
        entry: Json = {
            "name": "hook.example.com",
            "clientConfig": {
                "url": f"https://localhost:{self.port}/review",
                "caBundle": self.ca_bundle,
            },
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
            "rules": [rule("pods")],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": f"hook-{kind.lower()}"},
            "webhooks": [entry | webhook],
        }


def rule(*resources: str, operations: Sequence[str] = ("CREATE",)) -> Json:
    """Make a rule about core resources."""
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }


def allow(**response: Any) -> Respond:
    """Allow every request, with other fields."""
    return lambda request: {"uid": request["uid"], "allowed": True, **response}


def deny(**status: Any) -> Respond:
    """Deny every request."""
    return lambda request: {"uid": request["uid"], "allowed": False, "status": status}


def patch_with(*operations: Json) -> Respond:
    """Allow every request, with a JSON patch."""
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return allow(patch=patch, patchType="JSONPatch")


@contextmanager
def running_hook(
    authority: trustme.CA,
    name: str = "localhost",
    *,
    respond: Respond | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Hook]:
    """Serve a webhook over TLS with a certificate for *name*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    hook = Hook(0, bundle, respond or allow())

    def handle(_path: str, body: bytes) -> tuple[int, bytes]:
        request = json.loads(body)["request"]
        hook.reviews.append(request)
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        content = hook.raw
        if content is None:
            content = json.dumps(review | {"response": hook.respond(request)}).encode()
        return hook.status, content

    with answering(handle, context, host) as hook.port:
        yield hook
