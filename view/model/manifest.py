"""Whether and where a pod would fit that is only a manifest yet. Pure, and changes nothing."""

from collections.abc import Mapping, Sequence
from operator import sub
from typing import Any

from contract.names import Names
from placement.cluster.holdings import View, plan_pod, taken_by
from placement.cluster.pods import Pod
from placement.errors import NoPlacement
from placement.scoring import Policy
from view.model.changes import find_changes, no_change
from view.model.errors import InvalidManifest
from view.model.occupancy import Occupancy
from view.model.pod_report import container_report
from view.model.pods import read_pod
from view.model.reports import FitReport, Gap, NodeVerdict
from view.model.verdicts import Question, judge

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
_MOST_COUNTED = 1000


def fit_manifest(
    manifest: Mapping[str, Any],
    nodes: Sequence[Occupancy],
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
) -> FitReport:
    """Decide about a pod, or one pod of a workload.

    Args:
        manifest: a Pod, or a workload with a pod template.
        nodes: all nodes with GPUs.
        gaps: what could not be read.
        names: the contract's names.
        policy: which card a share prefers.

    Raises:
        InvalidManifest: it is neither, or its pods ask for no GPU.
    """
    kind, pod, replicas = _pod_of(manifest, names)
    metadata = _mapping(manifest.get("metadata"))
    facts = read_pod(pod, names)
    name = _text(metadata.get("name")) or _text(metadata.get("generateName"))
    if facts is None:
        raise InvalidManifest(
            f'{kind} "{name}" asks for no GPU: no container has {names.core} in its limits'
        )
    question = Question(facts.placed, facts.constraints)
    verdicts = [judge(question, each, policy) for each in nodes]
    fitting = [verdict.node for verdict in verdicts if verdict.fits and not facts.errors]
    stuck = bool(nodes) and not fitting and not facts.errors
    changes = find_changes(question, nodes, names) if stuck else ()
    return FitReport(
        kind=kind,
        namespace=_text(metadata.get("namespace")),
        name=name,
        fits=bool(fitting),
        replicas=replicas,
        room=_count(facts.placed, nodes, set(fitting), replicas, policy),
        containers=tuple(map(container_report, facts.placed.demand.containers)),
        errors=facts.errors,
        nodes=() if facts.errors else tuple(sorted(verdicts, key=_fits_first)),
        changes=changes,
        no_change=no_change(question, nodes) if stuck and not changes else "",
        gaps=tuple(gaps),
    )


def _fits_first(verdict: NodeVerdict) -> tuple[bool, bool, str]:
    return not verdict.fits, verdict.for_good, verdict.node


def _pod_of(manifest: Mapping[str, Any], names: Names) -> tuple[str, dict[str, Any], int]:
    """Return the kind, the pod as it would be created, and how many of it."""
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
        raise InvalidManifest(f"{kind}: no pod spec in it")
    asked = _mapping(manifest.get("spec")).get("parallelism" if kind == "Job" else "replicas", 1)
    replicas = asked if kind != "Pod" and isinstance(asked, int) else 1
    annotations = {
        key: value
        for key, value in _mapping(_mapping(pod.get("metadata")).get("annotations")).items()
        # The webhook refuses a wish that is no text; the API server all others.
        if isinstance(key, str) and (isinstance(value, str) or key in names.wishes)
    }
    # Where it is to be is what is asked; what a running pod has got says nothing of a new one.
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    return kind, {"metadata": {"annotations": annotations}, "spec": spec}, replicas


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(
    pod: Pod, nodes: Sequence[Occupancy], fitting: set[str], replicas: int, policy: Policy
) -> int:
    """Count how many such pods fit together, up to *replicas*."""
    if replicas <= 1:
        return int(bool(fitting))
    found, most = 0, min(replicas, _MOST_COUNTED)
    for each in nodes:
        if each.view.node.name not in fitting:
            continue
        view = each.view
        while found < most and (after := _after(pod, view, policy)) is not None:
            view, found = after, found + 1
    return found


def _after(pod: Pod, view: View, policy: Policy) -> View | None:
    """Return a node with one more such pod on it; ``None`` where it does not fit any more."""
    try:
        plan = plan_pod(pod, view.node, view.free, policy)
    except NoPlacement:
        return None
    if plan is None:
        return None
    free = list(view.free)
    for place, *counts in taken_by(plan, view.node):
        free[place] = tuple(map(sub, free[place], counts))
    return View(view.node, tuple(free))
