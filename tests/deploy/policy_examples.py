"""Requests that policies allow or deny; e2e sends them to a real API server."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from contract.names import Names
from tests.deploy.manifests import Json
from tests.deploy.policies import Update

NAMES = Names()
AGENT = "system:serviceaccount:gpu-turnstile-node:gpu-turnstile-agent"
SCHEDULER = "system:kube-scheduler"
KUBELET = "system:node:n1"
OTHER_USER = "other-user"
OURS = {
    NAMES.predicate_time: "1700000000000000000",
    NAMES.admission_order: "01700000000000000000-w1-00000000",
    NAMES.gpu_assigned: "false",
}


@dataclass(frozen=True)
class Example:
    """One request: a merge patch by a user, whose token may name a node.

    *denied* is a part of the message; *bound* is the pod's node; *annotations* are those before.
    """

    title: str
    user: str
    patch: Json
    denied: str = ""
    node: str | None = None
    bound: str = "n1"
    annotations: Mapping[str, str] = field(default_factory=lambda: OURS)
    subresource: str = ""

    def update(self, old: Json) -> Update:
        return Update(self.user, old, merge(old, self.patch), self.subresource, self.node)


def merge(target: Json, patch: Json) -> Json:
    """Apply a merge patch (RFC 7386)."""
    merged = deepcopy(target)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            inner = merged.get(key)
            merged[key] = merge(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _notes(**more: str | None) -> Json:
    return {"metadata": {"annotations": {f"tencent.com/{k}": v for k, v in more.items()}}}


def _note(key: str, value: str | None) -> Json:
    return {"metadata": {"annotations": {key: value}}}


def _agent(title: str, patch: Json, denied: str = "", **more: Any) -> Example:
    return Example(title, AGENT, patch, denied, node="n1", **more)


def _kubelet(title: str, patch: Json, denied: str = "", **more: Any) -> Example:
    return Example(title, KUBELET, patch, denied, subresource="status", **more)


def _other(title: str, patch: Json, denied: str = "", **more: Any) -> Example:
    return Example(title, OTHER_USER, patch, denied, **more)


_RECORD = _notes(**{"gpu-allocation": "{}", "gpu-assigned": "true", "predicate-gpu-idx-0": "1"})
_FIRST = {**OURS, NAMES.use_gpu_type: "a100"}
_ALLOCATION = _note(NAMES.gpu_allocation, "{}")
_INVENTORY = _note(NAMES.gpu_cards, "{}")
_CHOICE = _note(NAMES.predicate_gpu_idx(0), "3")
_WISH = _note(NAMES.use_gpu_type, "h100")
_HALVES = _note(NAMES.gpu_cards_of("main"), "2")
_FOREIGN = _note("example.com/owner", "me")
_LABEL = {"metadata": {"labels": {"a": "b"}}}
_FINALIZER = {"metadata": {"finalizers": ["example.com/stay"]}}
_OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]

_OWN_NODE = "only pods of its own node"
_ONLY = "may change only the annotations gpu-assigned"
_ANNOTATIONS = "only annotations"
_NOT_YOURS = "only gpu-turnstile may change"
_ANEW = "create the pod again"
_AS_IT_IS = "gpu-cards-* of an existing pod cannot be changed"

PODS = [
    _agent("the agent writes its record on a pod of its node", _RECORD),
    Example("the agent writes on a pod of another node", AGENT, _RECORD, _OWN_NODE, node="n2"),
    _agent("the agent writes on a pod without a node", _RECORD, _OWN_NODE, bound=""),
    Example("a token of the agent's account names no node", AGENT, _RECORD, _OWN_NODE),
    _agent("the agent changes a foreign annotation", _FOREIGN, _ONLY),
    _agent(
        "the agent removes a foreign annotation",
        _note("example.com/owner", None),
        _ONLY,
        annotations={**OURS, "example.com/owner": "you"},
    ),
    _agent("the agent changes a stamp", _note(NAMES.admission_order, "0"), _ONLY),
    _agent("the agent removes a wish", _note(NAMES.use_gpu_type, None), _ONLY, annotations=_FIRST),
    _agent("the agent labels a pod", _LABEL, _ANNOTATIONS),
    _agent("the agent adds a finalizer", _FINALIZER, _ANNOTATIONS),
    _agent(
        "the agent makes itself an owner", {"metadata": {"ownerReferences": _OWNERS}}, _ANNOTATIONS
    ),
    _agent(
        "the agent gives a pod a deadline", {"spec": {"activeDeadlineSeconds": 60}}, "pod's spec"
    ),
    _agent("the agent writes through the status", _RECORD, "pod's status", subresource="status"),
    _other("another user writes a record", _RECORD, _NOT_YOURS),
    _kubelet("the kubelet's account writes a record through the status", _ALLOCATION, _NOT_YOURS),
    _other("another user removes a stamp", _note(NAMES.admission_order, None), _NOT_YOURS),
    _other("another user changes an original", _note(NAMES.translated_from, "{}"), _NOT_YOURS),
    _other("another user removes all annotations", {"metadata": {"annotations": None}}, _NOT_YOURS),
    _other("another user records on a pod without notes", _ALLOCATION, _NOT_YOURS, annotations={}),
    _other("another user chooses a card", _CHOICE, "only a scheduler may"),
    Example("the scheduler chooses a card", SCHEDULER, _CHOICE),
    Example("the scheduler stamps anew", SCHEDULER, _note(NAMES.predicate_time, "2")),
    Example("the scheduler writes a record", SCHEDULER, _ALLOCATION, _NOT_YOURS),
    _other("another user labels a GPU pod", _LABEL),
    _other("another user adds a foreign annotation", _FOREIGN),
    _kubelet("the kubelet writes a status", {"status": {"message": "running"}}),
    _other(
        "an author changes a wish before the pod has a node", _WISH, bound="", annotations=_FIRST
    ),
    _other("an author changes a wish once the pod has a node", _WISH, _ANEW, annotations=_FIRST),
    _other("an author adds a limit once the pod has a node", _note(NAMES.core_limit, "100"), _ANEW),
    _other("an author divides a share later", _HALVES, _AS_IT_IS, bound=""),
    _other(
        "an author divides a share no more",
        _note(NAMES.gpu_cards_of("main"), None),
        _AS_IT_IS,
        bound="",
        annotations={**OURS, NAMES.gpu_cards_of("main"): "2"},
    ),
    _agent("the agent divides a share", _HALVES, _ONLY),
    _other("another user annotates a plain pod", _FOREIGN, annotations={}),
]

_CARDS = {NAMES.gpu_cards: "{}"}

NODES = [
    _agent("the agent writes its inventory", _INVENTORY),
    Example("the agent writes to another node", AGENT, _INVENTORY, "only its own node", node="n2"),
    Example("a token without a node", AGENT, _INVENTORY, "only its own node"),
    _agent(
        "the agent labels its node with the model of its cards",
        {"metadata": {"labels": {NAMES.gpu_model: "NVIDIA-A30"}}},
    ),
    _agent("the agent labels its node otherwise", _LABEL, "only the label gpu-model"),
    _agent("the agent adds a finalizer to its node", _FINALIZER, "only annotations and a label"),
    _agent(
        "the agent taints its node",
        {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
        "node's spec",
    ),
    _agent("the agent writes a foreign annotation", _FOREIGN, "only the annotation gpu-cards"),
    _agent(
        "the agent writes through the status", _INVENTORY, "node's status", subresource="status"
    ),
    *(
        _other(f"another user {what}", _note(NAMES.gpu_cards, to), "inventory", annotations=_CARDS)
        for what, to in (("changes the inventory", "[]"), ("removes the inventory", None))
    ),
    _kubelet("the kubelet's account writes an inventory", _INVENTORY, "inventory", annotations={}),
    _kubelet(
        "the kubelet writes a status",
        {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}},
        annotations=_CARDS,
    ),
    _other("another user labels a GPU node", _LABEL, annotations=_CARDS),
]
"""On a node; ``bound`` is its name."""
