"""The JSON Schema of what machines read: ``python -m tests.view.terminal.schema`` writes it."""

import json
import re
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from view.model.doctor.facts import Finding
from view.model.manifest_fit import FitReport
from view.model.pod_explanation import PodExplanation
from view.model.queues import WorkloadExplanation
from view.model.reports import DeniedReport, Gap, NodeReport, PodReport
from view.model.usage import ContainerUsage, NodeUsage
from view.model.usage_history import History
from view.terminal.documents import API_VERSION

FILE = Path(__file__).parents[3] / "docs/kubectl-gpu.schema.json"
_PODS = tuple[PodReport, ...]
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "GpuNodeList": (NodeReport, {"pods": _PODS, "denied": tuple[DeniedReport, ...]}),
    "GpuPodList": (PodReport, {"uses": tuple[ContainerUsage, ...] | None}),
    "GpuPodExplanationList": (PodExplanation, {}),
    "GpuWorkloadExplanationList": (WorkloadExplanation, {}),
    "GpuFitList": (FitReport, {}),
    "GpuFindingList": (Finding, {}),
    "GpuUseList": (NodeUsage, {"measuredAt": str, "lastDay": History | None}),
}
OPTIONAL = {"pods", "denied"}
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def schema() -> dict[str, Any]:
    """Return the schema, made of the reports as they are."""
    known: dict[str, Any] = {}
    metadata = {each: {"type": "string"} for each in ("asOf", "stale", "server")}
    lists = []
    for kind, (item, more) in KINDS.items():
        properties = {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind},
            "metadata": _object(metadata),
            "unknown": _of(tuple[Gap, ...], known),
            "items": _of(tuple[item, ...], known),  # type: ignore[valid-type]  # at run time
            **{key: _of(each, known) for key, each in more.items()},
        }
        lists.append(_object(properties, {*properties} - OPTIONAL))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kubectl gpu -o json",
        "oneOf": lists,
        "$defs": dict(sorted(known.items())),
    }


def _object(properties: dict[str, Any], required: set[str] | None = None) -> dict[str, Any]:
    needed = [each for each in properties if required is None or each in required]
    return {"type": "object", "properties": properties, "required": needed}


def _of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if get_origin(kind) is UnionType:
        return {"anyOf": [_of(each, known) for each in get_args(kind)]}
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return {"type": "array", "items": _of(inner[0], known)}
        return {"type": "array", "prefixItems": [_of(each, known) for each in inner]}
    if issubclass(kind, Enum):
        return {"enum": [each.value for each in kind]}
    assert isinstance(kind, type), kind
    assert is_dataclass(kind), kind
    if kind.__name__ not in known:
        known[kind.__name__] = {}
        types = get_type_hints(kind, include_extras=True)
        description = _attribute_descriptions(kind.__doc__ or "")
        properties = {
            _camel(each.name): _field(types[each.name], description.get(each.name, ""), known)
            for each in fields(kind)
        }
        summary = (kind.__doc__ or "").split("\n")[0]
        known[kind.__name__] = {"description": summary, **_object(properties)}
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _field(kind: Any, description: str, known: dict[str, Any]) -> dict[str, Any]:
    if get_origin(kind) is Annotated:
        kind, description = get_args(kind)
    return {**_of(kind, known), **({"description": _plain(description)} if description else {})}


def _attribute_descriptions(doc: str) -> dict[str, str]:
    """Return a docstring's description of each attribute."""
    _, _, listed = doc.partition("Attributes:\n")
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", listed, re.MULTILINE)
    return {name: _plain(text) for name, text in found}


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.capitalize() for each in rest)


def text() -> str:
    """Return the schema as it is written."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
