"""kube-scheduler's extender protocol (``k8s.io/kube-scheduler/extender/v1``), read strictly.

Its types have no JSON tags, so keys are the names of Go's fields, capitalised. Go's decoder accepts
other spellings by case, but its encoder, which writes all requests, does not use them: we do not
accept them. Bytes in, frozen values out, and the reverse; nothing else happens here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from json.encoder import encode_basestring_ascii

from common.serving.errors import BadRequest
from common.strict_json import decode_strictly
from contract.errors import quote
from contract.fields import Fields
from scheduler.decisions import FilterResult, Json

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
    listed, names = document.raw("Nodes"), document.raw("NodeNames")
    if (listed is None) == (names is None):
        given = "both" if names is not None else "neither"
        raise BadRequest(f"NodeNames, Nodes: must be exactly one of them, found {given}")
    if names is not None:
        if len(body) > LARGEST_NAMES:
            text = f"body: must be at most {LARGEST_NAMES} bytes with NodeNames"
            raise BadRequest(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return ExtenderArgs(pod, _names(document))
    items = document.child("Nodes", "must be a list of nodes").items("items")
    for number, each in enumerate(items):
        path = f"Nodes.items[{number}]"
        if not isinstance(each, dict):
            raise _invalid(path, each, "must be a node")
        _name(_check_object(Fields(path, each, BadRequest), "status"), "name")
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
    meta = document.raw("NodeNameToMetaVictims") is not None
    field = "NodeNameToMetaVictims" if meta else "NodeNameToVictims"
    nodes = document.mapping(field) or {}
    victims, violations = {}, {}
    for name, each in nodes.items():
        path = f"{field}[{name[:LONGEST_NAME]}]"
        pods = each.get("Pods") if isinstance(each, dict) else None
        if not isinstance(pods, list) or not all(isinstance(one, dict) for one in pods):
            raise _invalid(path, each, "must have a list of pods")
        count = each.get("NumPDBViolations") or 0
        if type(count) is not int:
            raise _invalid(f"{path}.NumPDBViolations", count, "must be a number")
        uids = []
        for number, one in enumerate(pods):
            metadata = one if "UID" in one else one.get("metadata")
            uid = metadata.get("UID", metadata.get("uid")) if isinstance(metadata, dict) else None
            if not isinstance(uid, str):
                raise _invalid(f"{path}.Pods[{number}]", one, "must have a UID")
            uids.append(uid)
        victims[name], violations[name] = tuple(uids), count
    return PreemptionArgs(pod, victims, violations)


def decode_binding(body: bytes) -> BindingArgs:
    """Read the body of bind.

    Raises:
        BadRequest: kube-scheduler would not send it; the text has field, value and rule.
    """
    document = _document(body, 16 * 1024, _BINDING, "ExtenderBindingArgs")
    return BindingArgs(*(_name(document, field) for field in _BINDING))


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


def _document(body: bytes, largest: int, fields: Sequence[str], kind: str) -> Fields:
    if len(body) > largest:
        text = f"body: must be at most {largest} bytes"
        raise BadRequest(text, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    document = decode_strictly(body)
    if not isinstance(document, dict):
        raise _invalid("body", document, f"must be {kind}")
    for key in document:
        if key not in fields:
            raise BadRequest(
                f"body: {quote(key)} is not a field of {kind}: must be {', '.join(fields)}"
            )
    return Fields("", document, BadRequest)


def _names(document: Fields) -> tuple[str, ...]:
    names = document.items("NodeNames")
    for number, each in enumerate(names):
        if type(each) is not str or not 0 < len(each) <= LONGEST_NAME or "," in each:
            raise _invalid(f"NodeNames[{number}]", each, "must be the name of a node")
    return tuple(names)


def _pod(document: Fields) -> Json:
    pod = document.child("Pod", "must be a pod")
    _check_object(pod, "spec")
    return pod.values


def _check_object(obj: Fields, part: str) -> Fields:
    """Check the types of the fields that other code reads without checking; return the metadata."""
    metadata = obj.child("metadata", obj.OBJECT)
    for field in ("name", "namespace", "uid", "creationTimestamp"):
        metadata.text(field)
    for key, value in (metadata.mapping("annotations") or {}).items():
        if not isinstance(value, str):
            path = f"{metadata.where}.annotations[{key[:LONGEST_NAME]}]"
            raise _invalid(path, value, "must be text")
    obj.mapping(part)
    status = obj.child("status")
    status.mapping("capacity")
    status.mapping("allocatable")
    if part == "spec":
        obj.child("spec").text("nodeName")
    return metadata


def _name(fields: Fields, name: str) -> str:
    value = fields.raw(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise fields.error(name, f"must be text of 1 to {LONGEST_NAME} characters")
    return value


def _invalid(path: str, value: object, rule: str) -> BadRequest:
    return BadRequest(f"{path}: Invalid value: {quote(value)}: {rule}")


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _encode(response: object) -> bytes:
    return _ENCODER.encode(response).encode("ascii")
