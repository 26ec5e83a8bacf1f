"""Whether and where pods would fit that are only a manifest yet. Pure, and changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Any

from contract.names import Names
from contract.resource import Counts
from placement.cluster.holdings import View, plan_pod, taken_by
from placement.cluster.pods import Pod
from placement.errors import NoPlacement
from placement.scoring import Policy
from view.model.changes import find_changes, no_change
from view.model.occupancy import Occupancy
from view.model.pod_report import container_report
from view.model.pods import PodFacts, read_pod
from view.model.reports import Answer, FitReport, Gap, NodeVerdict, Placed
from view.model.verdicts import Question, judge
from view.model.words import summarize

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


class InvalidManifest(ValueError):
    """A manifest of which it cannot be said whether it fits; the message says why."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A manifest that has been read."""

    kind: str
    namespace: str
    name: str
    facts: PodFacts
    replicas: int


def fit_manifests(
    manifests: Sequence[Mapping[str, Any]],
    nodes: Sequence[Occupancy],
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
) -> tuple[FitReport, ...]:
    """Decide about manifests, each beside the pods of those before it.

    Raises:
        InvalidManifest: one is neither, or its pods ask for no GPU.
    """
    found = []
    for asked in [_read(each, names) for each in manifests]:
        report, nodes = _fit(asked, nodes, tuple(gaps), names, policy)
        found.append(report)
    return tuple(found)


def _fit(
    asked: _Asked,
    nodes: Sequence[Occupancy],
    gaps: tuple[Gap, ...],
    names: Names,
    policy: Policy,
) -> tuple[FitReport, Sequence[Occupancy]]:
    """Decide about one manifest; return the nodes with its pods on them, too."""
    facts, replicas = asked.facts, asked.replicas
    question = Question(facts.placed, facts.constraints)
    verdicts = [judge(question, each, policy) for each in nodes]
    fitting = {verdict.node for verdict in verdicts if verdict.fits and not facts.errors}
    each_node = asked.kind == "DaemonSet"
    if each_node:
        wanted = [each for each in nodes if not facts.constraints.keep_from(each.facts.traits)]
        replicas = max(len(wanted), 1)
    placed, after = _place(facts.placed, nodes, fitting, replicas, policy, one=each_node)
    room = sum(placed.values())
    short = ""
    if room < replicas and not facts.errors:
        short = summarize(judge(question, each, policy).reason for each in after) or "no node"
    stuck = bool(nodes) and not fitting and not facts.errors
    changes = find_changes(question, nodes, names) if stuck else ()
    report = FitReport(
        kind=asked.kind,
        namespace=asked.namespace,
        name=asked.name,
        answer=_answer(facts, replicas, room, gaps),
        replicas=replicas,
        room=room,
        placed=tuple(Placed(node, pods) for node, pods in placed.items()),
        short=short,
        containers=tuple(map(container_report, facts.placed.demand.containers)),
        errors=facts.errors,
        nodes=() if facts.errors else tuple(sorted(verdicts, key=_fits_first)),
        changes=changes,
        no_change=no_change(question, nodes) if stuck and not changes else "",
        gaps=gaps,
    )
    return report, after


def _answer(facts: PodFacts, replicas: int, room: int, gaps: Sequence[Gap]) -> Answer:
    if facts.errors:
        return Answer.INVALID
    if room >= replicas and (room or not any(gap.what == "nodes" for gap in gaps)):
        return Answer.FITS
    unseen = any(gap.what == "nodes" for gap in gaps) or room >= _MOST_COUNTED
    return Answer.UNKNOWN if unseen else Answer.NOT


def _fits_first(verdict: NodeVerdict) -> tuple[bool, bool, str]:
    return not verdict.fits, verdict.for_good, verdict.node


def _read(manifest: Mapping[str, Any], names: Names) -> _Asked:
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
    counted = _mapping(manifest.get("spec")).get("parallelism" if kind == "Job" else "replicas", 1)
    annotations = {
        key: value
        for key, value in _mapping(_mapping(pod.get("metadata")).get("annotations")).items()
        # The webhook refuses a wish that is no text; the API server all others.
        if isinstance(key, str) and (isinstance(value, str) or key in names.wishes)
    }
    # Where it is to be is what is asked; what a running pod has got says nothing of a new one.
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    metadata = _mapping(manifest.get("metadata"))
    name = _text(metadata.get("name")) or _text(metadata.get("generateName"))
    facts = read_pod({"metadata": {"annotations": annotations}, "spec": spec}, names)
    if facts is None:
        raise InvalidManifest(
            f'{kind} "{name}" asks for no GPU: no container has {names.core} in its limits'
        )
    replicas = counted if kind != "Pod" and type(counted) is int else 1
    return _Asked(kind, _text(metadata.get("namespace")), name, facts, max(replicas, 0))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _place(  # noqa: PLR0913 -- what it depends on
    pod: Pod,
    nodes: Sequence[Occupancy],
    fitting: set[str],
    most: int,
    policy: Policy,
    *,
    one: bool,
) -> tuple[dict[str, int], list[Occupancy]]:
    """Put so many equal pods on nodes, one node after the other.

    Args:
        pod: one of them.
        nodes: all nodes.
        fitting: names of those that can have it.
        most: how many pods.
        policy: which card a share prefers.
        one: not more than one on a node, as of a DaemonSet.

    Returns:
        How many are on which node, and the nodes with them.
    """
    found: dict[str, int] = {}
    after, left = [], min(most, _MOST_COUNTED)
    for each in nodes:
        name, view = each.view.node.name, each.view
        taken: dict[int, Counts] = {}
        while (
            left
            and name in fitting
            and not (one and name in found)
            and (rows := _take(pod, view, policy)) is not None
        ):
            found[name], left = found.get(name, 0) + 1, left - 1
            free = list(view.free)
            for place, *counts in rows:
                free[place] = tuple(map(sub, free[place], counts))
                taken[place] = tuple(map(add, taken.get(place, (0,) * len(counts)), counts))
            view = View(view.node, tuple(free))
        after.append(each.reserve(taken) if taken else each)
    return found, after


def _take(pod: Pod, view: View, policy: Policy) -> Sequence[tuple[int, ...]] | None:
    """Return what one such pod would take of which card; ``None`` where it does not fit."""
    try:
        plan = plan_pod(pod, view.node, view.free, policy)
    except NoPlacement:
        return None
    return None if plan is None else taken_by(plan, view.node)
