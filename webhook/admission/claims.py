"""The claim of a GPU pod, by which Dynamic Resource Allocation gives it its cards.

The limits stay: quotas and LimitRanges count them as before. The claims program makes the named
template (:mod:`contract.claims`).
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from contract.claims import CLAIM, DRA_MODE, MODE_LABEL, PodClaim, is_template_name, request_names
from contract.demand import ContainerKind, PodDemand
from contract.requests import walk_containers
from webhook.admission.decision import Operation, short
from webhook.admission.patches import remove_value, set_value


class Claims(StrEnum):
    """Whether GPU pods get a claim."""

    OFF = "off"
    AWAY = "away"
    """None does, and each stays off the nodes that serve claims."""
    ON = "on"


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ANY_NODE: Mapping[str, Any] = {"nodeSelectorTerms": [{"matchExpressions": []}]}
_AWAY = {"key": MODE_LABEL, "operator": "NotIn", "values": [DRA_MODE]}


def add_claim(spec: Mapping[str, Any], claim: PodClaim) -> tuple[Operation, ...]:
    """Return the changes that give a pod its claim, instead of any claim by a template of ours.

    A copied pod, and one that another webhook changed after us, names the template of other limits.

    *spec* is the pod's, as all other changes leave it.
    """
    ours = {"name": CLAIM, "resourceClaimTemplateName": claim.template}
    return tuple(_changes(spec, [ours], claim.requests))


def keep_away(spec: Mapping[str, Any]) -> tuple[Operation, ...]:
    """Return the changes that keep a GPU pod without a claim off the nodes that serve claims.

    The counts of its limits are there, too, so it would start without a card.
    """
    dropped = _changes(spec, [], {}) if _by_our_templates(spec) else ()
    affinity = _mapping(spec.get("affinity"))
    of_nodes = _mapping(affinity.get("nodeAffinity"))
    found = of_nodes.get(_REQUIRED)
    required = _ANY_NODE if found is None else _mapping(found)
    before = required.get("nodeSelectorTerms")
    if not isinstance(before, list):
        return tuple(dropped)  # the API server denies it
    terms = [_with_away(each) for each in before]
    if terms == before:
        return tuple(dropped)
    required = {**required, "nodeSelectorTerms": terms}
    changed = {**affinity, "nodeAffinity": {**of_nodes, _REQUIRED: required}}
    return (*dropped, set_value(("spec", "affinity"), changed))


def _with_away(term: Any) -> Any:
    """Add the expression to one term, of which any must match; one without any matches no node."""
    if not isinstance(term, Mapping) or not term:
        return term
    expressions = term.get("matchExpressions") or []
    if not isinstance(expressions, list) or _AWAY in expressions:
        return term
    return {**term, "matchExpressions": [*expressions, _AWAY]}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def drop_claims(pod: Mapping[str, Any]) -> tuple[tuple[Operation, ...], tuple[str, ...]]:
    """Return changes and warnings that take claims by our templates from a pod without GPUs.

    It is a copy of a GPU pod, or its request was removed. It would get cards that nobody counts.
    """
    spec = pod.get("spec")
    dropped = sorted(_by_our_templates(spec))
    warnings = (f"claim {short(each)}: dropped, the pod requests no GPU" for each in dropped)
    return (tuple(_changes(spec, [], {})) if dropped else ()), tuple(warnings)


def about_claims(spec: Mapping[str, Any], demand: PodDemand) -> Iterator[str]:
    """Warn of what a claim does differently."""
    priority = spec.get("priority")  # set by the API server, of the class
    named = bool(spec.get("priorityClassName"))
    is_high = priority > 0 if isinstance(priority, int) else named
    if is_high and spec.get("preemptionPolicy") != "Never":
        yield "its priority does not preempt: no pod gives up its card for another pod's claim"
    requests = request_names(demand)
    for each in demand.containers:
        if each.kind is ContainerKind.INIT and requests[each.name] == each.name:
            yield (
                f"init container {short(each.name)}: its claim holds cards as long as the pod "
                "lives, more than quotas count: request the same as a later container"
            )
    for _, _, container in walk_containers(spec):
        name = container.get("name")
        if isinstance(name, str) and name not in requests and CLAIM in _claims_of(container):
            yield f"container {short(name)}: claim {CLAIM} dropped, it requests no GPU"


def _changes(
    spec: Any, ours: list[Mapping[str, str]], requests: Mapping[str, str]
) -> Iterator[Operation]:
    """Yield the changes that leave *ours*, and others' claims, in a pod's spec."""
    dropped = _by_our_templates(spec) | {each["name"] for each in ours}
    yield from _set_list(("spec", "resourceClaims"), spec.get("resourceClaims"), dropped, ours)
    for field, index, container in walk_containers(spec):
        resources = container.get("resources")
        if not isinstance(resources, Mapping):
            continue
        request = requests.get(_name(container))
        own = [{"name": CLAIM, "request": request}] if request else []
        steps = ("spec", field, index, "resources", "claims")
        yield from _set_list(steps, resources.get("claims"), dropped, own)


def _set_list(
    steps: tuple[str | int, ...],
    found: object,
    dropped: set[str],
    ours: list[Mapping[str, str]] | list[dict[str, str]],
) -> Iterator[Operation]:
    before = found if isinstance(found, list) else []
    after = [*(each for each in before if _name(each) not in dropped), *ours]
    if after and after != before:
        yield set_value(steps, after)
    elif before and not after:
        yield remove_value(steps)


def _by_our_templates(spec: object) -> set[str]:
    """Return the names of the claims by templates of ours."""
    listed = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    return {
        _name(each)
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, Mapping) and is_template_name(each.get("resourceClaimTemplateName"))
    }


def _claims_of(container: Mapping[str, Any]) -> list[str]:
    resources = container.get("resources")
    listed = resources.get("claims") if isinstance(resources, Mapping) else None
    return [_name(each) for each in listed] if isinstance(listed, list) else []


def _name(claim: object) -> str:
    name = claim.get("name") if isinstance(claim, Mapping) else None
    return name if isinstance(name, str) else ""
