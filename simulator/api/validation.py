"""What the API server does to pods and nodes before it stores them.

Only what a GPU pod meets: names, quantities in canonical form, the rules for extended
resources, the fields of a running pod that nobody may change. The words are those of
``kubernetes/pkg/apis/core/validation``.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

from simulator.api.errors import StatusError, bad_request, invalid
from simulator.api.quantities import InvalidQuantity, as_number, canonical
from simulator.api.resources import NODES, PODS, Json, Resource

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LONGEST_NAME = 253
_CONTAINER_FIELDS = ("initContainers", "containers")
_LIVE_POD_FIELDS = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations")


def decoded(resource: Resource, obj: Json) -> Json:
    """Return *obj* as the server's own types would write it back.

    Raises:
        StatusError: 400, a field has a type that the server's types do not have.
    """
    if resource == PODS:
        return _decoded_pod(obj)
    if resource == NODES:
        return _decoded_node(obj)
    return obj


def prepared(resource: Resource, obj: Json) -> Json:
    """Fill in what the server fills in when an object is created."""
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


def check(resource: Resource, obj: Json) -> None:
    """Refuse an object that breaks the rules.

    Raises:
        StatusError: 422, with every finding.
    """
    findings = list(_check_meta(obj))
    if resource == PODS:
        findings += _check_pod(obj)
    if findings:
        raise invalid(resource, str(obj["metadata"].get("name", "")), findings)


def check_update(resource: Resource, old: Json, new: Json) -> None:
    """Refuse to change what is fixed once a pod exists.

    Raises:
        StatusError: 422.
    """
    check(resource, new)
    if resource == PODS and _fixed_part(old) != _fixed_part(new):
        allowed = ",".join(
            f"`{field}`"
            for field in (
                "spec.containers[*].image",
                "spec.initContainers[*].image",
                *(f"spec.{field}" for field in _LIVE_POD_FIELDS),
            )
        )
        raise invalid(
            resource,
            str(new["metadata"]["name"]),
            [f"spec: Forbidden: pod updates may not change fields other than {allowed}"],
        )


def _fixed_part(pod: Json) -> Json:
    spec = {key: value for key, value in pod["spec"].items() if key not in _LIVE_POD_FIELDS}
    for field in _CONTAINER_FIELDS:
        if field in spec:
            spec[field] = [{**container, "image": None} for container in spec[field] or ()]
    return spec


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
        parent.pop(field, None)  # null decodes to what absence decodes to
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


def _undecodable(kind: str, why: str) -> StatusError:
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def _check_meta(obj: Json) -> Iterator[str]:
    metadata = obj["metadata"]
    name = metadata.get("name")
    if not name:
        yield "metadata.name: Required value: name or generateName is required"
    elif len(str(name)) > _LONGEST_NAME or not _NAME.match(str(name)):
        yield f'metadata.name: Invalid value: "{name}": {_NAME_RULE}'
    for field in ("annotations", "labels"):
        values = metadata.get(field)
        if values is not None and not (
            isinstance(values, dict) and all(isinstance(each, str) for each in values.values())
        ):
            yield f"metadata.{field}: Invalid value: must be a map of strings"


def _check_pod(pod: Json) -> Iterator[str]:
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        yield "spec.containers: Required value"
    seen: set[str] = set()
    for field in _CONTAINER_FIELDS:
        for index, container in enumerate(spec.get(field) or ()):
            path = f"spec.{field}[{index}]"
            name = container.get("name")
            if not name:
                yield f"{path}.name: Required value"
            elif name in seen:
                yield f'{path}.name: Duplicate value: "{name}"'
            seen.add(name or "")
            yield from _check_resources(container.get("resources") or {}, f"{path}.resources")


def _check_resources(resources: Json, path: str) -> Iterator[str]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, value in sorted(limits.items()):
        yield from _check_quantity(name, value, f"{path}.limits[{name}]")
    for name, value in sorted(requests.items()):
        field = f"{path}.requests[{name}]"
        yield from _check_quantity(name, value, field)
        if name in limits:
            asked, limit = as_number(value), as_number(limits[name])
            if is_extended(name) and asked != limit:
                yield (
                    f'{field}: Invalid value: "{value}": '
                    f"must be equal to {name} limit of {limits[name]}"
                )
            elif asked > limit:
                yield (
                    f'{field}: Invalid value: "{value}": '
                    f"must be less than or equal to {name} limit of {limits[name]}"
                )
        elif is_extended(name):
            yield (
                f"{path}.limits[{name}]: Required value: "
                "Limit must be set for non overcommitable resources"
            )


def _check_quantity(name: str, value: str, field: str) -> Iterator[str]:
    number = as_number(value)
    if number < 0:
        yield f'{field}: Invalid value: "{value}": must be greater than or equal to 0'
    if is_extended(name) and number.denominator != 1:
        yield f'{field}: Invalid value: "{value}": must be an integer'


def is_extended(name: str) -> bool:
    """Return whether a resource is one that Kubernetes itself knows nothing about."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))
