"""Selectors of nodes and pods, as Kubernetes reads them. Pure.

The rules are those of ``k8s.io/component-helpers/scheduling/corev1`` (``nodeaffinity``, taints) and
of label selectors in ``meta/v1``. What is not known here selects, or is tolerated: it is kept from
no decision, as a newer API server may have it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

_EMPTY: Mapping[str, Any] = {}
_OS = "kubernetes.io/os"
_NAME = "metadata.name"
CONDITIONS = "node.kubernetes.io/"
"""Beginning of the taints that follow from conditions of the node, such as a cordon."""


class Expression(NamedTuple):
    """One requirement of a selector: a key, an operator such as ``In``, and values."""

    key: str
    operator: str
    values: tuple[str, ...]


def read_expressions(listed: object) -> tuple[Expression, ...]:
    """Read ``matchExpressions`` or ``matchFields``."""
    return tuple(
        Expression(
            str(each.get("key")),
            str(each.get("operator")),
            tuple(map(str, _list(each.get("values")))),
        )
        for each in map(_mapping, _list(listed))
    )


def fulfils(labels: Mapping[str, str], expression: Expression) -> bool:
    """Return whether labels fulfil a requirement."""
    key, operator, values = expression
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            return _compares(labels.get(key, ""), operator, values)
        case _:
            return True


def _compares(label: str, operator: str, values: Sequence[str]) -> bool:
    try:
        found, (limit,) = int(label), map(int, values)
    except ValueError:
        return False
    return found > limit if operator == "Gt" else found < limit


class Taint(NamedTuple):
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Return it as ``kubectl taint`` has it."""
        return f"{self.key}{f'={self.value}' * bool(self.value)}:{self.effect}"


def read_taints(spec: Mapping[str, Any]) -> tuple[Taint, ...]:
    """Read the taints of a node that keep pods away; not those of its conditions."""
    found = (
        Taint(*(str(each.get(name) or "") for name in Taint._fields))
        for each in spec.get("taints") or ()
    )
    return tuple(
        each
        for each in found
        if each.effect in ("NoSchedule", "NoExecute") and not each.key.startswith(CONDITIONS)
    )


class _Toleration(NamedTuple):
    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator not in ("", "Equal") or self.value == taint.value


_Term: TypeAlias = tuple[tuple[Expression, ...], tuple[Expression, ...]]
"""The expressions on labels, and those on fields, of one term of a node affinity."""


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Which nodes the spec of a pod allows, whatever is free there.

    Attributes:
        os: its operating system (``spec.os``); empty if it names none.
        labels: its ``nodeSelector``.
        terms: those of its required node affinity, of which one must be fulfilled; ``None``
            without one.
        tolerations: which taints it tolerates.
        node: its ``nodeName`` if its author has written it; else empty. No scheduler is asked then,
            and of taints the kubelet looks at ``NoExecute`` only.
        gates: the names of its ``schedulingGates``: no node gets it before they are removed, which
            excludes none.
    """

    os: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[_Term, ...] | None = None
    tolerations: tuple[_Toleration, ...] = ()
    node: str = ""
    gates: tuple[str, ...] = ()

    def excludes(self, name: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> str:
        """Return what excludes a node, in words; empty if nothing does."""
        if self.node not in ("", name):
            return f"spec.nodeName {self.node}"
        if self.os and labels.get(_OS, self.os) != self.os:
            return f"spec.os {self.os}"
        for key, value in self.labels:
            if labels.get(key) != value:
                return f"nodeSelector {key}={value}"
        if self.terms is not None and not any(_selects(term, name, labels) for term in self.terms):
            return "required node affinity"
        for taint in taints:
            if self.node and taint.effect != "NoExecute":
                continue
            if not any(each.tolerates(taint) for each in self.tolerations):
                return f"no toleration of the taint {taint}"
        return ""


ANY_NODE = NodeSelection()


def _selects(term: _Term, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a term selects a node; one without expressions selects none."""
    expressions, fields = term
    return bool(expressions or fields) and (
        all(fulfils(labels, each) for each in expressions)
        and all(fulfils({_NAME: name}, each) for each in fields)
    )


def read_selection(spec: Mapping[str, Any]) -> NodeSelection:
    """Read which nodes the spec of a pod allows, without ``nodeName``.

    A scheduler writes it, so it says nothing of a pod that exists already.
    """
    required = _mapping(
        _mapping(_mapping(spec.get("affinity")).get("nodeAffinity")).get(
            "requiredDuringSchedulingIgnoredDuringExecution"
        )
    )
    listed = required.get("nodeSelectorTerms")
    return _shared(
        NodeSelection(
            str(_mapping(spec.get("os")).get("name") or ""),
            tuple(
                (str(key), str(value)) for key, value in _mapping(spec.get("nodeSelector")).items()
            ),
            tuple(
                (
                    read_expressions(_mapping(each).get("matchExpressions")),
                    read_expressions(_mapping(each).get("matchFields")),
                )
                for each in _list(listed)
            )
            if required
            else None,
            tuple(
                _Toleration(*(str(each.get(name) or "") for name in _Toleration._fields))
                for each in map(_mapping, _list(spec.get("tolerations")))
            ),
            gates=tuple(
                str(_mapping(each).get("name")) for each in _list(spec.get("schedulingGates"))
            ),
        )
    )


@lru_cache(maxsize=1024)
def _shared(selection: NodeSelection) -> NodeSelection:
    """Return the same object for equal selections, to save memory."""
    return selection


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _EMPTY
