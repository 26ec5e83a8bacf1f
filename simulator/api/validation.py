"""Decode, default and validate pods and nodes before they are stored.

Only the parts that matter for GPU pods: defaults, quantities in canonical form, required names.
The messages are those of ``kubernetes/pkg/apis/core/validation``.
"""

import copy
from collections.abc import Iterator
from typing import Any

from simulator.api.errors import StatusError, bad_request, invalid
from simulator.api.quantities import InvalidQuantity, canonical
from simulator.api.resources import NODES, PODS, ApiResource, Json

_CONTAINER_FIELDS = ("initContainers", "containers")


def decoded(resource: ApiResource, obj: Json) -> Json:
    """Return *obj* as the server encodes it after decoding it into its own types.

    Raises:
        StatusError: 400, a field has a wrong type.
    """
    if resource == PODS:
        return _decoded_pod(obj)
    if resource == NODES:
        return _decoded_node(obj)
    return obj


def prepared(resource: ApiResource, obj: Json) -> Json:
    """Return a new object with the server's default values."""
    if resource != PODS:
        return obj
    pod = copy.deepcopy(obj)
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    for field in _CONTAINER_FIELDS:
        for container in spec.get(field) or ():
            resources = container.setdefault("resources", {})
            limits, requests = resources.get("limits"), resources.get("requests")
            if limits:
                resources["requests"] = dict(limits) | dict(requests or {})
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
    return pod


def check(resource: ApiResource, obj: Json) -> None:
    """Refuse an object that breaks the rules.

    Raises:
        StatusError: 422, with all errors.
    """
    findings = list(_check_meta(obj))
    if resource == PODS:
        findings += _check_pod(obj)
    if findings:
        raise invalid(resource, str(obj["metadata"].get("name", "")), findings)


def _decoded_pod(obj: Json) -> Json:
    pod = copy.deepcopy(obj)
    spec = _mapping(pod, "spec", "Pod")
    for field in _CONTAINER_FIELDS:
        containers = spec.get(field)
        if containers is None:
            continue
        if not isinstance(containers, list) or not all(isinstance(c, dict) for c in containers):
            raise _undecodable("Pod", f"spec.{field} must be a list of objects")
        for container in containers:
            if not isinstance(container.get("name", ""), str):
                raise _undecodable("Pod", f"spec.{field}.name must be a string")
            resources = _mapping(container, "resources", "Pod")
            for listing in ("limits", "requests"):
                _canonicalise(resources, listing, "Pod")
    return pod


def _decoded_node(obj: Json) -> Json:
    node = copy.deepcopy(obj)
    status = _mapping(node, "status", "Node")
    for listing in ("capacity", "allocatable"):
        _canonicalise(status, listing, "Node")
    return node


def _mapping(parent: Json, field: str, kind: str) -> Json:
    value: Any = parent.get(field)
    if value is None:
        parent.pop(field, None)  # null means the same as a missing field
        return {}
    if not isinstance(value, dict):
        raise _undecodable(kind, f"{field} must be an object")
    return value


def _canonicalise(parent: Json, field: str, kind: str) -> None:
    listing = _mapping(parent, field, kind)
    for name, value in listing.items():
        try:
            listing[name] = canonical(value)
        except InvalidQuantity as error:
            raise _undecodable(kind, str(error)) from error


def _undecodable(kind: str, reason: str) -> StatusError:
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {reason}')


def _check_meta(obj: Json) -> Iterator[str]:
    metadata = obj["metadata"]
    if not metadata.get("name"):
        yield "metadata.name: Required value: name or generateName is required"
    values = (metadata.get("annotations") or {}).values()
    if not all(isinstance(each, str) for each in values):
        yield "metadata.annotations: Invalid value: must be a map of strings"


def _check_pod(pod: Json) -> Iterator[str]:
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    for field in _CONTAINER_FIELDS:
        for index, container in enumerate(spec.get(field) or ()):
            if not container.get("name"):
                yield f"spec.{field}[{index}].name: Required value"
