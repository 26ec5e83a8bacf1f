"""Whether and where the pods of manifests would fit. Pure; nothing is created."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from contract.names import Names
from contract.spelling import (
    MisnamedRequest,
    advise_names,
    advise_places,
    advise_wishes,
    find_misnamed,
)
from placement.held import add_up
from placement.pods import PodInfo
from placement.scoring import Policy
from view.model.changes import find_advice
from view.model.explanation import FitReport, FitResult, Placed
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts, read_pod_facts
from view.model.reports import Gap
from view.model.why import evaluate_nodes, fits_first, plan_on
from view.model.words import clamp, summarize

_TEMPLATES = {
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        (
            *("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController"),
            "StatefulSet",
        ),
        ("spec", "template"),
    ),
}
_MOST_COUNTED = 10_000

_DOCS = "docs/install.md#pods-of-other-systems"
_ACCEPT = f"or accept pods of that system: {_DOCS}"
_DRY_RUN = f"or, where pods of that system are accepted ({_DOCS}): kubectl create --dry-run=server"
_FIT_POD = f"{_DRY_RUN} -o yaml -f FILE | kubectl gpu fit -f -"
_FIT_WORKLOAD = f"{_DRY_RUN} -f FILE warns of what they become"


class InvalidManifest(ValueError):
    """A manifest that cannot be checked; the message is the reason."""


def fit_manifests(
    manifests: Sequence[Mapping[str, Any]],
    nodes: Sequence[Occupancy],
    gaps: tuple[Gap, ...],
    names: Names,
    policy: Policy,
) -> tuple[FitReport, ...]:
    """Check manifests in order, each with the pods of those before it in place.

    Raises:
        InvalidManifest: one is not a pod or workload, or its pods request no GPU.
    """
    found = []
    for manifest, (kind, replicas, facts) in [(each, _read(each, names)) for each in manifests]:
        pod, most_each = facts.info, replicas
        if kind == "DaemonSet":
            replicas = max(sum(not each.facts.cordoned for each in nodes), 1)  # noqa: PLW2901
            most_each = 1
        node_fits = [] if pod.errors else [evaluate_nodes(pod, each, policy) for each in nodes]
        fitting = {node_fit.node for node_fit in node_fits if node_fit.fits}
        placed, after = _place(pod, nodes, fitting, replicas, most_each, policy)
        room = sum(placed.values())
        advice = find_advice(pod, nodes, names)
        found.append(
            FitReport(
                kind=kind,
                namespace=pod.id.namespace,
                name=pod.id.name,
                result=_result(facts, replicas, room, gaps),
                replicas=replicas,
                room=room,
                placed=tuple(Placed(node, pods) for node, pods in placed.items()),
                short=_short(pod, after) if room < replicas and not pod.errors else "",
                containers=facts.report.containers,
                errors=pod.errors,
                nodes=tuple(sorted(node_fits, key=fits_first)),
                changes=advice.changes,
                no_change=advice.nothing,
                warnings=_warnings(manifest, kind, names),
                gaps=gaps,
            )
        )
        nodes = after
    return tuple(found)


def _short(pod: PodInfo, nodes: Sequence[Occupancy]) -> str:
    """Return why one more pod is not placed; a DaemonSet has at most one per node."""
    refusals = filter(None, (each.refusal(pod.pod_class) for each in nodes))
    return summarize(clamp(each.reason) for each in refusals) or "no node"


def _result(facts: PodFacts, replicas: int, room: int, gaps: Sequence[Gap]) -> FitResult:
    if facts.info.errors:
        return FitResult.INVALID
    if room >= replicas and (room or not any(gap.what == "nodes" for gap in gaps)):
        return FitResult.FITS
    unseen = any(gap.what == "nodes" for gap in gaps) or room >= _MOST_COUNTED
    return FitResult.UNKNOWN if unseen else FitResult.NOT


def _read(manifest: Mapping[str, Any], names: Names) -> tuple[str, int, PodFacts]:
    """Return the kind of a manifest, its number of pods, and one of them."""
    kind = manifest.get("kind")
    if kind == "Pod":
        pod: Any = manifest
    elif isinstance(kind, str) and kind in _TEMPLATES:
        pod = manifest
        for field in _TEMPLATES[kind]:
            pod = pod.get(field) if isinstance(pod, Mapping) else None
    else:
        known = ", ".join(sorted(["Pod", *_TEMPLATES]))
        raise InvalidManifest(f"kind: Unsupported value: {kind!r}: supported values: {known}")
    if not isinstance(pod, Mapping) or not isinstance(pod.get("spec"), Mapping):
        raise InvalidManifest(f"{kind}: it has no pod spec")
    counted = _mapping(manifest.get("spec")).get("parallelism" if kind == "Job" else "replicas", 1)
    annotations = {
        key: value
        for key, value in _mapping(_mapping(pod.get("metadata")).get("annotations")).items()
        # The webhook denies these if they are not text; the API server denies all other values.
        if isinstance(key, str)
        and (
            isinstance(value, str) or key in names.wishes or key.startswith(names.gpu_cards_prefix)
        )
    }
    # The node is what we look for; the node of a running pod says nothing about a new one.
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    own = _mapping(manifest.get("metadata"))
    name, prefix, namespace = (
        str(own.get(field) or "") for field in ("name", "generateName", "namespace")
    )
    metadata = {"name": name or prefix, "namespace": namespace, "annotations": annotations}
    facts = read_pod_facts({"metadata": metadata, "spec": spec}, names)
    if facts is None:
        other_way = _FIT_POD if kind == "Pod" else _FIT_WORKLOAD
        raise InvalidManifest(f'{kind} "{name}" {requests_none(pod, names, other_way=other_way)}')
    errors = _errors(facts.info.errors, find_misnamed(pod, names))
    facts = replace(facts, info=replace(facts.info, errors=errors))
    replicas = counted if kind != "Pod" and type(counted) is int else 1
    return kind, max(replicas, 0), facts


def _errors(found: Sequence[str], misnamed: Sequence[MisnamedRequest]) -> tuple[str, ...]:
    """Return the errors of a pod, with those of misspelt resources in place of their effects."""
    misspelt = [each for each in misnamed if each.error]
    missing = tuple(f"{each.replaces}: Required value" for each in misspelt)
    rest = (each for each in found if not each.startswith(missing))
    return (*(clamp(str(each.error)) for each in misspelt), *rest)


def _warnings(manifest: Mapping[str, Any], kind: str, names: Names) -> tuple[str, ...]:
    """Return what to write instead of names and places that nobody reads."""
    steps = _TEMPLATES.get(kind, ())
    pod: Any = manifest
    for step in steps:
        pod = pod[step]
    others = (each for each in find_misnamed(pod, names) if not each.error)
    found = (
        *advise_names(others),
        *advise_wishes(pod, names, path="".join(f"{each}." for each in steps)),
        *advise_places(manifest, names, steps=steps),
    )
    return tuple(map(clamp, found))


def requests_none(pod: Mapping[str, Any], names: Names, *, other_way: str = _ACCEPT) -> str:
    """Return that a pod or template requests no GPU, and what to write if it seems to.

    Args:
        pod: the pod or template, possibly hostile.
        names: our resources and annotations.
        other_way: what else to do with requests in another system's names.
    """
    text = f"requests no GPU: no container has {names.core} in its limits"
    misnamed = find_misnamed(pod, names)
    otherwise = (other_way,) if any(each.unit for each in misnamed) else ()
    return "; ".join(map(clamp, (text, *advise_names(misnamed), *otherwise)))


def _mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def _place(  # noqa: PLR0913, PLR0917 -- all it depends on
    pod: PodInfo,
    nodes: Sequence[Occupancy],
    fitting: set[str],
    most: int,
    most_each: int,
    policy: Policy,
) -> tuple[dict[str, int], list[Occupancy]]:
    """Place identical pods, filling one node after the other.

    Returns:
        The number of pods on each node, and the nodes with these pods.
    """
    found: dict[str, int] = {}
    after, left = [], min(most, _MOST_COUNTED)
    for each in nodes:
        name, then = each.snapshot.node.name, each
        for _ in range(min(left, most_each) if name in fitting else 0):
            plan = plan_on(pod, then.snapshot, policy)
            if plan is None:
                break
            found[name], left = found.get(name, 0) + 1, left - 1
            parts = [zip(part.cards, part.fresh, strict=True) for part in plan.values()]
            then = then.reserve(add_up(chain.from_iterable(parts)))
        after.append(then)
    return found, after
