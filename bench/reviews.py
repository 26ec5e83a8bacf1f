"""Reviews of real size, for the questions about the webhook. Pure."""

import json
from typing import Any

from contract.names import Names

NAMES = Names()


def review(size: int) -> bytes:
    """Make the review of a GPU pod of about *size* bytes, as the API server sends it.

    Real pods grow by environment, volumes and managed fields; so does this one.
    """
    pod = _pod()
    spec = pod["spec"]["containers"][0]
    body = _review(pod)
    number = 0
    while len(json.dumps(body)) < size:
        spec["env"].append({"name": f"SETTING_{number}", "value": f"value-{number}-" + "x" * 24})
        spec["volumeMounts"].append({"name": f"v{number}", "mountPath": f"/mnt/v{number}"})
        pod["spec"]["volumes"].append({"name": f"v{number}", "configMap": {"name": f"c{number}"}})
        number += 1
    return json.dumps(body, separators=(",", ":")).encode()


def requests() -> list[bytes]:
    """Make whole HTTP requests, one of each kind: what a fuzzer starts from."""
    pod = _pod()
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    binding = {"metadata": {"name": "train"}, "target": {"kind": "Node", "name": "n1"}}
    bodies = [
        ("/mutate/pods", _review(pod)),
        ("/mutate/bindings", _review(binding, kind="Binding", subresource="binding")),
        (
            "/validate/workloads",
            _review({"spec": {"template": template}}, "apps", "deployments", "Deployment"),
        ),
        (
            "/validate/workloads",
            _review(
                {"spec": {"jobTemplate": {"spec": {"template": template}}}},
                *("batch", "cronjobs", "CronJob"),
            ),
        ),
    ]
    found = [_post(path, json.dumps(body).encode()) for path, body in bodies]
    found.append(_chunked("/mutate/pods", json.dumps(bodies[0][1]).encode()))
    found += [_get(path) for path in ("/healthz", "/readyz", "/metrics", "/nowhere")]
    return found


def _post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _chunked(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()
    half = len(body) // 2
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:half], body[half:]))
    return head + pieces + b"0\r\n\r\n"


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def _review(
    obj: dict[str, Any],
    group: str = "",
    plural: str = "pods",
    kind: str = "Pod",
    *,
    subresource: str = "",
) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": group, "version": "v1", "kind": kind},
            "resource": {"group": group, "version": "v1", "resource": plural},
            "subResource": subresource,
            "requestKind": {"group": group, "version": "v1", "kind": kind},
            "requestResource": {"group": group, "version": "v1", "resource": plural},
            "name": "train",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "5ff0f3f1-6d2e-4a27-9d86-2f2f35e5a7f1",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": obj,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }


def _pod() -> dict[str, Any]:
    limits = {NAMES.core: "50", NAMES.memory: "8", "cpu": "4", "memory": "16Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train",
            "namespace": "team",
            "labels": {"app": "train", "pod-template-hash": "6b7f8c9d5"},
            "annotations": {"example.com/owner": "a/b~c", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "initContainers": [{"name": "fetch", "image": "registry.example/fetch:1"}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "env": [],
                    "volumeMounts": [],
                    "resources": {"limits": limits, "requests": dict(limits)},
                },
                {"name": "proxy", "image": "registry.example/proxy:1"},
            ],
            "volumes": [],
            "restartPolicy": "Always",
            "serviceAccountName": "train",
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    }
