"""Pods and a TLS webhook, for the tests of the API server and the scheduler."""

import base64
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
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
    """Make a node; ``core`` is short for the resource of these tests."""
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
    """A webhook of a test: its address, its received requests, and its response."""

    port: int
    ca_bundle: str
    respond: Respond
    reviews: list[Json] = field(default_factory=list)
    status: int = 200
    raw: bytes | None = None

    def configuration(self, **webhook: Any) -> Json:
        """Return a configuration with one webhook that is called for new pods."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
        entry: Json = {
            "name": "hook.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "failurePolicy": "Fail",
            "rules": [{**rule, "resources": ["pods"]}],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "hook"},
            "webhooks": [entry | webhook],
        }


def patch_with(*operations: Json) -> Respond:
    """Allow every request, with a JSON patch."""
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    response = {"allowed": True, "patch": patch, "patchType": "JSONPatch"}
    return lambda request: {"uid": request["uid"], **response}


@contextmanager
def running_hook(
    authority: trustme.CA, name: str = "localhost", *, respond: Respond, host: str = "127.0.0.1"
) -> Iterator[Hook]:
    """Serve a webhook over TLS with a certificate for *name*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    hook = Hook(0, bundle, respond)

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
