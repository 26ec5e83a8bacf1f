"""kube-scheduler's extender protocol (``k8s.io/kube-scheduler/extender/v1``), read strictly.

Its types have no JSON tags, so keys are the names of Go's fields, capitalised. Go's decoder accepts
other spellings by case, but its encoder, which writes all requests, does not use them: we do not
accept them. Bytes in, frozen values out, and the reverse; nothing else happens here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NoReturn, TypeVar

from common.serving.errors import BadRequest
from common.strict_json import decode_strictly
from contract.errors import quote
from scheduler.decisions import FilterResult, Json

T = TypeVar("T")

LARGEST_NAMES = 8 * 2**20
"""Most bytes of a request; a pod has at most 3 MiB, and 5,000 node names are a quarter of 1 MiB."""

LARGEST_NODES = 128 * 2**20
"""Most bytes of a request with whole nodes (``nodeCacheCapable: false``)."""

LONGEST_NAME = 253
"""Longest name of an object in Kubernetes."""

_ARGS = ("Pod", "Nodes", "NodeNames")
_PREEMPTION = ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims")
_BINDING = ("PodName", "PodNamespace", "PodUID", "Node")
_UNDECIDED: Json = {
    "Nodes": None,
    "NodeNames": None,
    "FailedNodes": {},
    "FailedAndUnresolvableNodes": {},
    "Error": "",
}


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """A request to filter or score nodes for a pod.

    Attributes:
        pod: the pod object; its metadata and spec are mappings.
        names: names of the nodes.
        nodes: the whole nodes; ``None`` if the request has only names.
        node_list: the other fields of the list with the whole nodes.
    """

    pod: Json
    names: tuple[str, ...]
    nodes: tuple[Json, ...] | None = None
    node_list: Json | None = None


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """A request to look over the victims that kube-scheduler has found.

    Attributes:
        pod: the pod object; its metadata and spec are mappings.
        victims: UIDs of the victims, by node.
        violations: how many budgets they violate, by node.
    """

    pod: Json
    victims: Mapping[str, tuple[str, ...]]
    violations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BindingArgs:
    """A request to bind a pod to a node."""

    name: str
    namespace: str
    uid: str
    node: str


def decode_args(body: bytes) -> ExtenderArgs:
    """Read the body of filter or prioritize.

    Raises:
        BadRequest: kube-scheduler would not send it; the text has field, value and rule.
    """
    document = _document(body, LARGEST_NODES, _ARGS, "ExtenderArgs")
    pod = _pod(document)
    listed, names = document.get("Nodes"), document.get("NodeNames")
    if (listed is None) == (names is None):
        given = "both" if names is not None else "neither"
        raise BadRequest(f"NodeNames, Nodes: must be exactly one of them, found {given}")
    if names is not None:
        if len(body) > LARGEST_NAMES:
            raise BadRequest(f"body: must be at most {LARGEST_NAMES} bytes with NodeNames")
        return ExtenderArgs(pod, _names(names))
    if not isinstance(listed, dict):
        _refuse("Nodes", listed, "must be a list of nodes")
    items = _optional("Nodes.items", listed.get("items"), list) or []
    for number, each in enumerate(items):
        path = f"Nodes.items[{number}]"
        if not isinstance(each, dict):
            _refuse(path, each, "must be a node")
        _check_object(path, each, "status")
        _text(each["metadata"], "name", f"{path}.metadata.")
    rest = {key: value for key, value in listed.items() if key != "items"}
    nodes = tuple(items)
    return ExtenderArgs(pod, tuple(each["metadata"]["name"] for each in nodes), nodes, rest)


def decode_preemption(body: bytes) -> PreemptionArgs:
    """Read the body of preempt, with whole pods as victims or their UIDs.

    Raises:
        BadRequest: kube-scheduler would not send it; the text has field, value and rule.
    """
    document = _document(body, LARGEST_NODES, _PREEMPTION, "ExtenderPreemptionArgs")
    pod = _pod(document)
    field = "NodeNameToMetaVictims"
    nodes = document.get(field)
    if nodes is None:
        field = "NodeNameToVictims"
        nodes = document.get(field) or {}
    if not isinstance(nodes, dict):
        _refuse(field, nodes, "must be a mapping")
    victims, violations = {}, {}
    for name, each in nodes.items():
        path = f"{field}[{name[:LONGEST_NAME]}]"
        pods = each.get("Pods") if isinstance(each, dict) else None
        if not isinstance(pods, list) or not all(isinstance(one, dict) for one in pods):
            _refuse(path, each, "must have a list of pods")
        count = each.get("NumPDBViolations") or 0
        if type(count) is not int:
            _refuse(f"{path}.NumPDBViolations", count, "must be a number")
        uids = []
        for number, one in enumerate(pods):
            metadata = one if "UID" in one else one.get("metadata")
            uid = metadata.get("UID", metadata.get("uid")) if isinstance(metadata, dict) else None
            if not isinstance(uid, str):
                _refuse(f"{path}.Pods[{number}]", one, "must have a UID")
            uids.append(uid)
        victims[name], violations[name] = tuple(uids), count
    return PreemptionArgs(pod, victims, violations)


def decode_binding(body: bytes) -> BindingArgs:
    """Read the body of bind.

    Raises:
        BadRequest: kube-scheduler would not send it; the text has field, value and rule.
    """
    document = _document(body, 16 * 1024, _BINDING, "ExtenderBindingArgs")
    return BindingArgs(*(_text(document, field) for field in _BINDING))


def encode_filtered(args: ExtenderArgs, filtered: FilterResult) -> bytes:
    """Encode the response to filter: nodes have the same form as in the request."""
    names, nodes = None, None
    if args.nodes is None:
        names = filtered.fitting
    else:
        kept = set(filtered.fitting)
        items = [each for each in args.nodes if each["metadata"]["name"] in kept]
        nodes = {**(args.node_list or {}), "items": items}
    return _encode(
        {
            **_UNDECIDED,
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": filtered.failed,
            "FailedAndUnresolvableNodes": filtered.unresolvable,
        }
    )


def encode_filter_error(text: str) -> bytes:
    """Encode the response to a filter that failed; kube-scheduler tries the pod again."""
    return _encode({**_UNDECIDED, "Error": text})


def encode_preemption(args: PreemptionArgs | None) -> bytes:
    """Encode the response to preempt: all victims as they were; ``None`` for no node at all."""
    nodes = {}
    if args is not None:
        for name, uids in args.victims.items():
            pods = [{"UID": uid} for uid in uids]
            nodes[name] = {"Pods": pods, "NumPDBViolations": args.violations[name]}
    return _encode({"NodeNameToMetaVictims": nodes})


def encode_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Encode the response to prioritize: a score for each node."""
    # Four times as fast as the encoder with a mapping for each node.
    scored = zip(map(encode_basestring_ascii, names), scores, strict=True)
    rows = [f'{{"Host":{name},"Score":{score}}}' for name, score in scored]
    return f"[{','.join(rows)}]".encode("ascii")


def encode_bound(error: str = "") -> bytes:
    """Encode the response to bind; without an error the pod is bound."""
    return _encode({"Error": error})


def _document(body: bytes, largest: int, fields: Sequence[str], kind: str) -> dict[str, Any]:
    if len(body) > largest:
        raise BadRequest(f"body: must be at most {largest} bytes")
    document = decode_strictly(body)
    if not isinstance(document, dict):
        raise BadRequest(f"body: Invalid value: {quote(document)}: must be {kind}")
    for key in document:
        if key not in fields:
            raise BadRequest(
                f"body: {quote(key)} is not a field of {kind}: must be {', '.join(fields)}"
            )
    return document


def _pod(document: Mapping[str, Any]) -> Json:
    pod = document.get("Pod")
    if not isinstance(pod, dict):
        _refuse("Pod", pod, "must be a pod")
    _check_object("Pod", pod, "spec")
    return pod


def _names(names: object) -> tuple[str, ...]:
    if not isinstance(names, list):
        _refuse("NodeNames", names, "must be a list")
    for number, each in enumerate(names):
        if type(each) is not str or not 0 < len(each) <= LONGEST_NAME or "," in each:
            _refuse(f"NodeNames[{number}]", each, "must be the name of a node")
    return tuple(names)


def _check_object(path: str, obj: Mapping[str, Any], part: str) -> None:
    """Check the types of the fields that other code reads without checking."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        _refuse(f"{path}.metadata", metadata, "must be a mapping")
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        _optional(f"{path}.metadata.{field}", metadata.get(field), str)
    annotations = _optional(f"{path}.metadata.annotations", metadata.get("annotations"), dict)
    for key, value in (annotations or {}).items():
        if not isinstance(value, str):
            _refuse(f"{path}.metadata.annotations[{key[:LONGEST_NAME]}]", value, "must be text")
    found = _optional(f"{path}.{part}", obj.get(part), dict) or {}
    status = _optional(f"{path}.status", obj.get("status"), dict) or {}
    for field in ("capacity", "allocatable"):
        _optional(f"{path}.status.{field}", status.get(field), dict)
    if part == "spec":
        _optional(f"{path}.spec.nodeName", found.get("nodeName"), str)


_RULES: Mapping[type, str] = {
    str: "must be text",
    dict: "must be a mapping",
    list: "must be a list",
}


def _optional(path: str, value: object, kind: type[T]) -> T | None:
    if value is not None and not isinstance(value, kind):
        _refuse(path, value, _RULES[kind])
    return value


def _text(mapping: Mapping[str, Any], field: str, path: str = "") -> str:
    value = mapping.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        _refuse(path + field, value, f"must be text of 1 to {LONGEST_NAME} characters")
    return value


def _refuse(path: str, value: object, rule: str) -> NoReturn:
    raise BadRequest(f"{path}: Invalid value: {quote(value)}: {rule}")


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _encode(response: object) -> bytes:
    return _ENCODER.encode(response).encode("ascii")
