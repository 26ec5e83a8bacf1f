"""Reviews of real size, for the questions about the webhook. Pure."""

import json
from typing import Any

from contract.names import Names

NAMES = Names()


def review(size: int) -> bytes:
    """Return the review of a GPU pod with about *size* bytes, as the API server sends it.

    Environment variables and volumes fill it, as in real pods.
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


def _review(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "train",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "5ff0f3f1-6d2e-4a27-9d86-2f2f35e5a7f1",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": pod,
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
