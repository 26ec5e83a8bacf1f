"""Static pods: read from a manifest on the node, shown in the API as mirror pods."""

import copy
import hashlib
import json

from simulator.client import Json
from simulator.kubelet.pods import CONFIG_HASH, MIRROR, Pod, parse_pod


def static_pod(manifest: Json, node_name: str) -> Pod:
    """Read a manifest as the kubelet's file source does.

    The UID is derived from the manifest and the name ends with the node's.

    Raises:
        InvalidPod: the manifest is not a pod.
    """
    obj = copy.deepcopy(manifest)
    metadata = obj.setdefault("metadata", {})
    # Not for security: the kubelet, too, makes a static pod's UID with MD5.
    digest = hashlib.md5(
        json.dumps([node_name, manifest], sort_keys=True).encode(), usedforsecurity=False
    ).hexdigest()
    metadata.setdefault("uid", digest)
    metadata.setdefault("namespace", "default")
    metadata["name"] = f"{metadata.get('name', '')}-{node_name}"
    obj.setdefault("spec", {})["nodeName"] = node_name
    return parse_pod(obj, static=True)


def mirror_of(pod: Pod) -> Json:
    """Build the mirror pod of a static pod."""
    obj = copy.deepcopy(pod.manifest)
    metadata = obj["metadata"]
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        metadata.pop(field, None)
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        MIRROR: pod.uid,
        CONFIG_HASH: pod.uid,
    }
    return {"apiVersion": "v1", "kind": "Pod", **obj}
