"""One full review of one full pod; each test changes one field of a copy."""

import copy
from typing import Any

import pytest

from contract.names import Names

NAMES = Names()
Json = dict[str, Any]

POD: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train",
        "namespace": "team",
        "annotations": {"example.com/owner": "a/b~c"},
    },
    "spec": {
        "initContainers": [{"name": "fetch", "image": "busybox"}],
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "resources": {"limits": {NAMES.core: "50", NAMES.memory: "8"}},
            }
        ],
    },
}

REVIEW: Json = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "name": "train",
        "namespace": "team",
        "userInfo": {"username": "someone"},
        "object": POD,
        "oldObject": None,
        "dryRun": False,
    },
}


@pytest.fixture
def pod() -> Json:
    return copy.deepcopy(POD)


@pytest.fixture
def review() -> Json:
    return copy.deepcopy(REVIEW)
