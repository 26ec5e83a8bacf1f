"""Reviews of real size, for the questions about the webhook. Pure."""

from typing import Any

from contract.names import Names
from simulator.api.resources import PODS, RequestTarget
from simulator.api.review import ReviewRequest, review_request
from simulator.api.review import review as encode_review

NAMES = Names()


def review(size: int) -> bytes:
    """Return the review of a GPU pod with about *size* bytes, as the API server sends it.

    Environment variables and volumes fill it, as in real pods.
    """
    pod = _pod()
    spec = pod["spec"]["containers"][0]
    target = RequestTarget(PODS, "team", "train")
    request = ReviewRequest(target, "CREATE", ("v1", "Pod"))
    body = review_request(request, pod, uid="705ab4f5-6393-11e8-b7cc-42010a800002")
    number = 0
    while len(encode_review(body)) < size:
        spec["env"].append({"name": f"SETTING_{number}", "value": f"value-{number}-" + "x" * 24})
        spec["volumeMounts"].append({"name": f"v{number}", "mountPath": f"/mnt/v{number}"})
        pod["spec"]["volumes"].append({"name": f"v{number}", "configMap": {"name": f"c{number}"}})
        number += 1
    return encode_review(body)


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
