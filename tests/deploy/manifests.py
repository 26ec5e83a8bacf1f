"""The objects of deploy/base as they are written, without kustomize."""

import tomllib
from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Much faster where PyYAML comes with libyaml."""

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = DEPLOY / "base"
VERSION: str = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]["version"]
CUSTOM = {
    *("Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ServiceMonitor"),
    "SecurityContextConstraints",
}
"""Kinds that operators bring, whose schemas are not Kubernetes'."""


NOT_OURS = ("MALLOC_", "NVIDIA_", "PYTHON")
"""How variables begin that are not options of ours."""


def read_yaml(path: Path) -> list[Json]:
    return [each for each in yaml.load_all(path.read_bytes(), Loader=LOADER) if each]


def base() -> list[Json]:
    return [
        each
        for path in sorted(BASE.rglob("*.yaml"))
        if path.name != "kustomization.yaml"
        for each in read_yaml(path)
    ]


def find(objects: list[Json], kind: str, name: str) -> Json:
    (found,) = (
        each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pod_specs(objects: list[Json]) -> dict[str, Json]:
    """Return the pod spec of everything that makes pods, as ``Kind/name``."""
    found = {}
    for each in objects:
        if each["kind"] in ("DaemonSet", "Deployment"):
            found[f"{each['kind']}/{each['metadata']['name']}"] = each["spec"]["template"]["spec"]
    return found


def containers(spec: Json) -> list[Json]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def environment(container: Json) -> dict[str, str]:
    """Give what a container's environment says outright."""
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def selects(selector: Json, labels: Json) -> bool:
    """Return whether a label selector (with no operator except ``In``) selects *labels*."""
    expressions = selector.get("matchExpressions", ())
    assert {each["operator"] for each in expressions} <= {"In"}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )
