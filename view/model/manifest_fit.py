"""Whether and where the pods of manifests would fit. Pure; nothing is created."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, NamedTuple

from contract.claims import find_claim_errors
from contract.names import Names
from contract.spelling import (
    MisnamedRequest,
    advise_names,
    advise_places,
    advise_wishes,
    find_misnamed,
)
from contract.text import format_count
from contract.workloads import WORKLOADS, template_of
from placement.first_fit import as_claimed
from placement.held import add_up
from placement.pods import PodInfo
from placement.scoring import Policy
from view.model.claims import FIRST_FIT, NO_CLAIMS, of_kind
from view.model.node_fits import (
    NodeFit,
    after_gates,
    excluded_by,
    fit_on_node,
    fits_first,
    plan_on,
    refusal_of,
    refused_by_kind,
)
from view.model.occupancy import Occupancy
from view.model.pod_facts import PodFacts, read_pod_facts
from view.model.reports import ContainerReport, Gap
from view.model.suggested_changes import (
    NO_SUGGESTIONS,
    SuggestedChange,
    Suggestions,
    suggest_changes,
)
from view.model.words import clamp, missing_node, name_some, summarize

_TEMPLATES = {"Pod": (), **{kind: each.template for kind, each in WORKLOADS.items()}}
_MOST_COUNTED = 10_000

_DOCS = "docs/install.md#pods-of-other-systems"
_ACCEPT = f"or accept pods of that system: {_DOCS}"
_DRY_RUN = f"or, where pods of that system are accepted ({_DOCS}): kubectl create --dry-run=server"
_FIT_POD = f"{_DRY_RUN} -o yaml -f FILE | kubectl gpu fit -f -"
_FIT_WORKLOAD = f"{_DRY_RUN} -f FILE warns of what they become"


class FitResult(StrEnum):
    """Whether the pods of a manifest fit."""

    FITS = "fits"
    """All its pods fit, together with those of the manifests before it."""
    NOT = "does not fit"
    INVALID = "would be denied"
    """The webhook would deny its pods: the request itself is invalid."""
    UNKNOWN = "unknown"
    """Nodes cannot be read, it is not known whether an agent still refuses pods, too many pods fit
    to count them, or it depends on the webhook's ``--claims``."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How many pods would be placed on one node."""

    node: str
    pods: int


@dataclass(frozen=True, slots=True)
class FitReport:
    """Whether and where the pods of a manifest would fit if they were created now."""

    kind: Annotated[str, "of the object, such as ``Pod`` or ``Deployment``."]
    namespace: Annotated[str, "its namespace; empty if it has none."]
    name: Annotated[str, "its name."]
    result: Annotated[FitResult, "whether all its pods fit."]
    replicas: Annotated[
        int,
        "how many pods it requests; for a DaemonSet, the number of nodes that are not cordoned and "
        "that its pods' own spec allows.",
    ]
    room: Annotated[int, "how many of them fit together."]
    placed: Annotated[
        tuple[Placed, ...],
        "on which nodes, by name; empty if that depends on the webhook's ``--claims``.",
    ]
    short: Annotated[
        str, "why the others are not placed, with the number of nodes; empty if all fit."
    ]
    containers: Annotated[tuple[ContainerReport, ...], "requests of one pod."]
    errors: Annotated[tuple[str, ...], "errors in the request itself, as the webhook words them."]
    nodes: Annotated[
        tuple[NodeFit, ...],
        "all nodes, those on which one such pod fits first; none if the request is invalid.",
    ]
    changes: Annotated[
        tuple[SuggestedChange, ...], "after each of which one pod would fit, the smallest first."
    ]
    no_change: Annotated[str, "a sentence if no change was found; else empty."]
    warnings: Annotated[
        tuple[str, ...], "what nobody reads, and what to write instead, as the webhook words it."
    ]
    gaps: Annotated[tuple[Gap, ...], "what could not be read."]
    claims: Annotated[
        str, "what is different because nodes serve claims, in a sentence; empty if nothing is."
    ] = ""
    gates: Annotated[
        tuple[str, ...],
        "scheduling gates for whose removal its pods wait; ``room``, ``placed`` and ``nodes`` are "
        "as they are then.",
    ] = ()

    @property
    def fits(self) -> bool:
        """Whether all its pods fit."""
        return self.result is FitResult.FITS


class InvalidManifest(ValueError):
    """A manifest that cannot be checked; the message is the reason."""


class _Manifest(NamedTuple):
    """One of the pods of a manifest, and how many there are.

    *pod* is the same as *facts*, as it was written; without a node if it exists already.
    """

    kind: str
    replicas: int
    facts: PodFacts
    pod: Mapping[str, Any]


class _Trial(NamedTuple):
    """The pods of a manifest, placed all with a claim or all without one.

    *node_fits* and *after*, the nodes with these pods, are of the nodes of that kind; *short* is
    why the others are not placed.
    """

    by_claim: bool
    result: FitResult
    errors: tuple[str, ...]
    placed: Mapping[str, int]
    node_fits: Sequence[NodeFit]
    after: Sequence[Occupancy]
    short: str
    suggestions: Suggestions

    @property
    def room(self) -> int:
        """How many are placed."""
        return sum(self.placed.values())


def fit_manifests(  # noqa: PLR0913 -- all it depends on
    manifests: Sequence[Mapping[str, Any]],
    nodes: Sequence[Occupancy],
    gaps: tuple[Gap, ...],
    names: Names,
    policy: Policy,
    *,
    now: datetime,
    missing: AbstractSet[str] = frozenset(),
) -> tuple[FitReport, ...]:
    """Check manifests in order, each with the pods of those before it in place.

    Where some nodes serve claims and others do not, the webhook's ``--claims`` decides on which a
    pod can run. Both are tried then, and only what is true for both is promised. *missing* are
    the :func:`named_node` that do not exist.

    Raises:
        InvalidManifest: one is not a pod or workload, or its pods request no GPU.
    """
    found = []
    for manifest, read in [(each, _read(each, names)) for each in manifests]:
        replicas, info = read.replicas, read.facts.info
        if read.kind == "DaemonSet":
            allowed = (each for each in nodes if not excluded_by(read.facts.selection, each))
            replicas = max(sum(not each.facts.cordoned for each in allowed), 1)
            read = read._replace(replicas=replicas)  # noqa: PLW2901
        trials = [
            _try(read, nodes, gaps, names, policy, now=now, by_claim=each)
            for each in _kinds(read, nodes)
        ]
        least = min(trials, key=lambda each: each.room)
        results = {each.result for each in trials}
        alike = len(results) == 1
        neither = results == {FitResult.NOT, FitResult.INVALID}
        node_fits = [fit for each in trials for fit in each.node_fits]
        if not (alike and least.errors):
            others = {each.node for each in node_fits}
            rest = (each for each in nodes if each.snapshot.node.name not in others)
            refused = (refused_by_kind(each, by_claim=trials[0].by_claim) for each in rest)
            node_fits += filter(None, refused)
        result = least.result if alike else FitResult.NOT if neither else FitResult.UNKNOWN
        short, gates = least.short, read.facts.selection.gates
        if gates and result is not FitResult.INVALID:
            fitting = [each.node for each in node_fits if each.fits]
            then = "may fit" if result is FitResult.UNKNOWN else "would not fit"
            if least.room and result is not FitResult.FITS:
                then += f" ({least.room} of {format_count(replicas, 'pod')} would)"
            then = f"would fit on {name_some(fitting)}" if result is FitResult.FITS else then
            result = FitResult.NOT
            short = after_gates(read.facts.selection, ": ".join(filter(None, (then, short))))
        found.append(
            FitReport(
                kind=read.kind,
                namespace=info.id.namespace,
                name=info.id.name,
                result=result,
                replicas=replicas,
                room=least.room,
                placed=tuple(Placed(*each) for each in least.placed.items() if len(trials) == 1),
                short=short,
                containers=read.facts.report.containers,
                errors=least.errors if alike else info.errors,
                nodes=tuple(sorted(node_fits, key=fits_first)),
                changes=least.suggestions.changes,
                no_change=least.suggestions.nothing,
                warnings=_warnings(manifest, read.kind, names, missing),
                gaps=gaps,
                claims=_about_claims(trials, replicas),
                gates=tuple(map(clamp, gates)),
            )
        )
        after = {each.snapshot.node.name: each for trial in trials for each in trial.after}
        placed = ((each, after.get(each.snapshot.node.name, each)) for each in nodes)
        nodes = [replace(then, facts=each.facts) for each, then in placed]
    return tuple(found)


def _kinds(read: _Manifest, nodes: Sequence[Occupancy]) -> list[bool]:
    """Return whether the pods will have a claim; both if that is not known."""
    if read.facts.report.claim_template:
        return [True]
    return sorted({each.facts.serves_claims for each in nodes}) or [False]


def _try(  # noqa: PLR0913 -- all it depends on
    read: _Manifest,
    nodes: Sequence[Occupancy],
    gaps: Sequence[Gap],
    names: Names,
    policy: Policy,
    *,
    now: datetime,
    by_claim: bool,
) -> _Trial:
    """Place the pods of a manifest on the nodes that serve claims, or on the others."""
    info, replicas, selection = read.facts.info, read.replicas, read.facts.selection
    errors, pod = info.errors, info
    if by_claim:
        found = find_claim_errors(read.pod, info.demand, info.wishes, names)
        errors, pod = errors or tuple(clamp(str(each)) for each in found), as_claimed(info)
    # A node that the pod names itself gets it from the kubelet, also while it is cordoned.
    cordoned = (each.uncordoned() if selection.node else each for each in nodes)
    found_by = (each.as_found_by("", read.facts.priority, now.timestamp()) for each in cordoned)
    suitable = of_kind(found_by, by_claim=by_claim)
    node_fits = [] if errors else [fit_on_node(pod, each, policy, selection) for each in suitable]
    fitting = {node_fit.node for node_fit in node_fits if node_fit.fits}
    most_each = 1 if read.kind == "DaemonSet" else replicas
    placed, after = _place(pod, suitable, fitting, replicas, most_each, policy)
    room = at_best = sum(placed.values())
    best = [each.at_best() for each in suitable]
    if room < replicas and best != suitable and not errors:
        fits = (fit_on_node(pod, each, policy, selection) for each in best)
        fitting = {node_fit.node for node_fit in fits if node_fit.fits}
        at_best = sum(_place(pod, best, fitting, replicas, most_each, policy)[0].values())
    suggested = NO_SUGGESTIONS
    if not errors:
        suggested = suggest_changes(pod, suitable, names, selection, now=now)
    return _Trial(
        by_claim,
        FitResult.INVALID if errors else _result(replicas, room, at_best, gaps),
        errors,
        placed,
        node_fits,
        after,
        _short(read, pod, after, nodes) if room < replicas and not errors else "",
        suggested,
    )


def _about_claims(trials: Sequence[_Trial], replicas: int) -> str:
    """Return what is different because nodes serve claims; empty if none does."""
    if len(trials) == 1:
        return FIRST_FIT if trials[0].by_claim and trials[0].node_fits else ""
    without, by_claim = (
        f"would be denied ({each.errors[0]})" if each.errors else f"{each.room} of {replicas} fit"
        for each in trials
    )
    return (
        "Some nodes serve claims, and the webhook's --claims decides whether pods get one: with a "
        f"claim {by_claim}, without one {without}"
    )


def _short(
    read: _Manifest, pod: PodInfo, suitable: Sequence[Occupancy], nodes: Sequence[Occupancy]
) -> str:
    """Return why one more pod is not placed; a DaemonSet has at most one per node."""
    refusals = filter(None, (refusal_of(pod, each, read.facts.selection) for each in suitable))
    others = [] if suitable else [NO_CLAIMS] * len(nodes)
    return summarize((*(clamp(each.reason) for each in refusals), *others)) or "no node"


def _result(replicas: int, room: int, at_best: int, gaps: Sequence[Gap]) -> FitResult:
    if room >= replicas and (room or not any(gap.what == "nodes" for gap in gaps)):
        return FitResult.FITS
    unseen = any(gap.what == "nodes" for gap in gaps) or room >= _MOST_COUNTED
    unseen = unseen or at_best >= replicas > room
    return FitResult.UNKNOWN if unseen else FitResult.NOT


def _read(manifest: Mapping[str, Any], names: Names) -> _Manifest:
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in _TEMPLATES:
        known = ", ".join(sorted(_TEMPLATES))
        raise InvalidManifest(f"kind: Unsupported value: {kind!r}: supported values: {known}")
    pod = template_of(manifest, _TEMPLATES[kind])
    if not isinstance(pod.get("spec"), Mapping):
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
    selection = replace(facts.selection, node=named_node(manifest))
    facts = replace(facts, info=replace(facts.info, errors=errors), selection=selection)
    replicas = counted if kind != "Pod" and type(counted) is int else 1
    written = pod if not _mapping(pod.get("metadata")).get("uid") else {**pod, "spec": spec}
    return _Manifest(kind, max(replicas, 0), facts, written)


def _errors(found: Sequence[str], misnamed: Sequence[MisnamedRequest]) -> tuple[str, ...]:
    """Return the errors of a pod, with those of misspelt resources in place of their effects."""
    misspelt = [each for each in misnamed if each.error]
    missing = tuple(f"{each.replaces}: Required value" for each in misspelt)
    rest = (each for each in found if not each.startswith(missing))
    return (*(clamp(str(each.error)) for each in misspelt), *rest)


def named_node(manifest: Mapping[str, Any]) -> str:
    """Return the node to which its author binds the pods of a manifest; empty for none.

    That of a pod that exists already was chosen by a scheduler.
    """
    pod = template_of(manifest, _TEMPLATES.get(str(manifest.get("kind")), ()))
    node = _mapping(pod.get("spec")).get("nodeName")
    is_new = not _mapping(pod.get("metadata")).get("uid")
    return node if is_new and isinstance(node, str) else ""


def _warnings(
    manifest: Mapping[str, Any], kind: str, names: Names, missing: AbstractSet[str]
) -> tuple[str, ...]:
    """Return what to write instead of names and places that nobody reads, or that are missing."""
    steps = _TEMPLATES[kind]
    pod = template_of(manifest, steps)
    others = (each for each in find_misnamed(pod, names) if not each.error)
    found = (
        *advise_names(others),
        *advise_wishes(pod, names, path="".join(f"{each}." for each in steps)),
        *advise_places(manifest, names, steps=steps),
        *(
            f"remove spec.nodeName: {missing_node(each)}, and no scheduler is asked"
            for each in {named_node(manifest)} & missing
        ),
    )
    return tuple(map(clamp, found))


def requests_none(pod: Mapping[str, Any], names: Names, *, other_way: str = _ACCEPT) -> str:
    """Return that a pod or template requests no GPU, and what to write if it seems to.

    If it uses another system's names, *other_way* is what else to do.
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
            plan = plan_on(pod, then, policy)
            if plan is None or (then.stranded and then.refusal(pod.pod_class)):
                break
            found[name], left = found.get(name, 0) + 1, left - 1
            parts = [zip(part.cards, part.fresh, strict=True) for part in plan.values()]
            then = then.reserve(add_up(chain.from_iterable(parts)))
        after.append(then)
    return found, after
