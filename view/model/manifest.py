"""Whether and where pods would fit that are only a manifest yet. Pure, and changes nothing."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from contract.names import Names
from placement.cluster.holdings import NodeSnapshot
from placement.held import HeldAmounts, add_up
from placement.pods import PodInfo
from placement.scoring import Policy
from view.model.changes import find_changes, no_change
from view.model.constraints import mapping, text
from view.model.occupancy import Occupancy
from view.model.pods import PodFacts, read_pod_facts
from view.model.reports import Gap
from view.model.stories import Answer, FitReport, Placed
from view.model.verdicts import fits_first, judge, plan_on, why_not_on
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


class InvalidManifest(ValueError):
    """A manifest of which it cannot be said whether it fits; the message says why."""


def fit_manifests(
    manifests: Sequence[Mapping[str, Any]],
    nodes: Sequence[Occupancy],
    gaps: tuple[Gap, ...],
    names: Names,
    policy: Policy,
) -> tuple[FitReport, ...]:
    """Decide about manifests, each beside the pods of those before it.

    Raises:
        InvalidManifest: one is neither, or its pods ask for no GPU.
    """
    found = []
    for kind, replicas, facts in [_read(each, names) for each in manifests]:
        verdicts = [judge(facts, each, policy) for each in nodes]
        fitting = {verdict.node for verdict in verdicts if verdict.fits and not facts.placed.errors}
        most_each = replicas
        if kind == "DaemonSet":
            wanted = [each for each in nodes if not facts.constraints.keep_from(each.facts.traits)]
            replicas, most_each = max(len(wanted), 1), 1  # noqa: PLW2901 -- by its nodes
        placed, after = _place(facts.placed, nodes, fitting, replicas, most_each, policy)
        room = sum(placed.values())
        stuck = bool(nodes) and not fitting and not facts.placed.errors
        changes = find_changes(facts, nodes, names) if stuck else ()
        found.append(
            FitReport(
                kind=kind,
                namespace=facts.placed.id.namespace,
                name=facts.placed.id.name,
                answer=_answer(facts, replicas, room, gaps),
                replicas=replicas,
                room=room,
                placed=tuple(Placed(node, pods) for node, pods in placed.items()),
                short=_short(facts, after) if room < replicas and not facts.placed.errors else "",
                containers=facts.report.containers,
                errors=facts.placed.errors,
                nodes=() if facts.placed.errors else tuple(sorted(verdicts, key=fits_first)),
                changes=changes,
                no_change=no_change(facts.placed, nodes) if stuck and not changes else "",
                gaps=gaps,
            )
        )
        nodes = after
    return tuple(found)


def _short(facts: PodFacts, nodes: Sequence[Occupancy]) -> str:
    """Return what keeps a further pod away; a DaemonSet's has no room beside its own."""
    refusals = filter(None, (why_not_on(facts, each) for each in nodes))
    return summarize(clamp(each.reason) for each in refusals) or "no node"


def _answer(facts: PodFacts, replicas: int, room: int, gaps: Sequence[Gap]) -> Answer:
    if facts.placed.errors:
        return Answer.INVALID
    if room >= replicas and (room or not any(gap.what == "nodes" for gap in gaps)):
        return Answer.FITS
    unseen = any(gap.what == "nodes" for gap in gaps) or room >= _MOST_COUNTED
    return Answer.UNKNOWN if unseen else Answer.NOT


def _read(manifest: Mapping[str, Any], names: Names) -> tuple[str, int, PodFacts]:
    """Return the kind of a manifest, how many pods it asks for, and one of them."""
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
    counted = mapping(manifest.get("spec")).get("parallelism" if kind == "Job" else "replicas", 1)
    annotations = {
        key: value
        for key, value in mapping(mapping(pod.get("metadata")).get("annotations")).items()
        # The webhook refuses a wish that is no text; the API server all others.
        if isinstance(key, str) and (isinstance(value, str) or key in names.wishes)
    }
    # Where it is to be is what is asked; what a running pod has got says nothing of a new one.
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    of = mapping(manifest.get("metadata"))
    name = text(of.get("name")) or text(of.get("generateName"))
    metadata = {"name": name, "namespace": text(of.get("namespace")), "annotations": annotations}
    facts = read_pod_facts({"metadata": metadata, "spec": spec}, names)
    if facts is None:
        raise InvalidManifest(
            f'{kind} "{name}" asks for no GPU: no container has {names.core} in its limits'
        )
    replicas = counted if kind != "Pod" and type(counted) is int else 1
    return kind, max(replicas, 0), facts


def _place(  # noqa: PLR0913, PLR0917 -- what it depends on
    pod: PodInfo,
    nodes: Sequence[Occupancy],
    fitting: set[str],
    most: int,
    most_each: int,
    policy: Policy,
) -> tuple[dict[str, int], list[Occupancy]]:
    """Put equal pods on nodes, one node after the other.

    Returns:
        How many are on which node, and the nodes with them.
    """
    found: dict[str, int] = {}
    after, left = [], min(most, _MOST_COUNTED)
    for each in nodes:
        name, view = each.view.node.name, each.view
        held = HeldAmounts.nothing_of(view.free)
        for _ in range(min(left, most_each) if name in fitting else 0):
            plan = plan_on(pod, view, policy)
            if plan is None:
                break
            found[name], left = found.get(name, 0) + 1, left - 1
            parts = [zip(part.cards, part.fresh, strict=True) for part in plan.values()]
            held = held.take(add_up(chain.from_iterable(parts)))
            view = NodeSnapshot(view.node, held.free)
        after.append(each.reserve(held.held) if name in found else each)
    return found, after
