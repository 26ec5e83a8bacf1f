"""The claim by which a pod gets its cards from Dynamic Resource Allocation. Pure.

A pod keeps its limits. Beside them it names a ResourceClaimTemplate, ``gpu-turnstile-<shape>``, by
the hash of the template's own spec: one request for each container with GPUs. The webhook writes
the name, the claims program makes the template of the stored pod's limits, and the agent reads the
claim: all by these functions.

The rules that they keep are those of Kubernetes 1.36: ``pkg/apis/resource/validation``,
``pkg/apis/core/validation`` (``validatePodResourceClaim``, ``validateResourceClaimNames``) and the
bounds in ``k8s.io/api/resource/v1``. Request names are container names: both are DNS labels. Within
a request the scheduler takes each device once (``allocateOne`` goes on behind the last one).
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.devices import CORES, LINK_ATTRIBUTES, MEMORY, MODEL, UUID
from contract.errors import FieldError, InvalidName, quote
from contract.names import Names
from contract.quantity import format_quantity
from contract.requests import annotations_of, read_pod_demand
from contract.resource import Resource
from contract.text import format_count
from contract.wishes import Wishes, read_wishes

CLAIM = "gpus"
"""The name of our claim in ``spec.resourceClaims`` of a pod."""

SHAPE_LABEL = "gpu-turnstile.io/shape"
"""The label of our templates: the hash in their name."""

MODE_LABEL, DRA_MODE = "gpu-turnstile.io/mode", "dra"
"""The label of nodes whose agent serves claims, and its value there."""

MOST_RESULTS = 32
"""Most devices of a claim (``AllocationResultsMaxSize``); as many requests and constraints."""

LONGEST_SELECTOR = 10 * 1024
"""Most bytes of a CEL selector. Its cost, of 1,000,000 at most, is then below 100,000: the cost of
``matches`` is 0.25 for each byte of the expression times 6.5 for an attribute of 64 characters."""

MOST_SELECTORS = 64 * 1024
"""Most bytes of all selectors of a claim: a namespace may have hundreds of templates."""

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the object that stands for a static pod, which cannot have claims."""

_LONGEST_DRIVER = 63
_PREFIX = "gpu-turnstile-"
_TEMPLATE_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}\Z", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9 ._|()\[\]^*+-]")
_PUNCTUATION = re.compile(r"[!-/:-@\[-^`{-~]")  # RE2 takes no escape of other characters
_LABEL_TEXT = re.compile(r"[a-z0-9._-]+\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """The claim of one pod.

    Attributes:
        template: name of its ResourceClaimTemplate.
        spec: the template's ``spec`` (``resource.k8s.io/v1``).
        requests: the request of each container with GPUs, by container.
    """

    template: str
    spec: Mapping[str, Any]
    requests: Mapping[str, str]


def driver_name(names: Names) -> str:
    """Return the name of our DRA driver, and of its DeviceClass.

    Raises:
        InvalidName: the domain is too long for it.
    """
    name = f"gpu.{names.domain}"
    if len(name) > _LONGEST_DRIVER:
        most = _LONGEST_DRIVER - len("gpu.")
        raise InvalidName(
            f"domain: Invalid value: {quote(names.domain)}: must have at most {most} characters "
            "for claims: Kubernetes allows 63 for the name of a driver"
        )
    return name


def serves_claims(labels: Mapping[str, Any]) -> bool:
    """Return whether the agent of a node with these labels gives cards by claims."""
    return labels.get(MODE_LABEL) == DRA_MODE


def is_template_name(name: object) -> bool:
    """Return whether a template's name is one of ours."""
    return isinstance(name, str) and _TEMPLATE_NAME.match(name) is not None


def shape_of(template: str) -> str:
    """Return the hash in a template's name."""
    return template.removeprefix(_PREFIX)


def template_name(pod: Mapping[str, Any], names: Names) -> str:
    """Return the name of a pod's template; empty if it has none (:func:`read_pod_claim`)."""
    claim = read_pod_claim(pod, names)
    return "" if claim is None else claim.template


def read_pod_claim(pod: Mapping[str, Any], names: Names) -> PodClaim | None:
    """Work out a pod's claim from its limits and its author's wishes, and from nothing else.

    It is ``None`` if the pod requests no GPU, or breaks a rule.
    """
    demand, errors = read_pod_demand(pod, names)
    wishes, wrong = read_wishes(annotations_of(pod), names)
    if not demand or errors or wrong or any(_find_limits(demand, wishes, names, "")):
        return None
    return make_claim(demand, wishes, names)


def make_claim(demand: PodDemand, wishes: Wishes, names: Names) -> PodClaim:
    """Return the claim of a pod with these requests and wishes, which break no rule."""
    spec = claim_template_spec(demand, wishes, names)
    return PodClaim(_name_of(spec), spec, request_names(demand))


def has_shape(template: str, spec: object) -> bool:
    """Return whether a template's spec, as the API server stores it, is that of its name.

    Fields that we do not write are passed over: the API server may add some with defaults.
    """
    return _name_of(_written(spec)) == template


def _name_of(spec: object) -> str:
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"{_PREFIX}{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"


_WRITTEN = {
    *("spec", "devices", "requests", "name", "exactly", "deviceClassName", "allocationMode"),
    *("count", "capacity", CORES, MEMORY, "selectors", "cel", "expression"),
    *("constraints", "matchAttribute"),
}


def _written(found: object) -> object:
    if isinstance(found, Mapping):
        return {key: _written(value) for key, value in found.items() if key in _WRITTEN}
    return [_written(each) for each in found] if isinstance(found, list) else found


def named_template(pod: Mapping[str, Any]) -> str:
    """Return the template of ours that a pod names for our claim; empty if it names none."""
    spec = pod.get("spec")
    listed = spec.get("resourceClaims") if isinstance(spec, Mapping) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, Mapping) and each.get("name") == CLAIM:
            template = each.get("resourceClaimTemplateName")
            return template if isinstance(template, str) and is_template_name(template) else ""
    return ""


def request_names(demand: PodDemand) -> dict[str, str]:
    """Return the request of each container, by container: in general its own.

    An ordinary init container uses that of the next container with an equal demand: it has ended
    when that one starts. Any other would hold cards of its own as long as the pod lives.
    """
    found: dict[str, str] = {}
    later: dict[Demand, str] = {}
    for container in reversed(demand.containers):
        is_init = container.kind is ContainerKind.INIT
        found[container.name] = (
            later.get(container.demand, container.name) if is_init else container.name
        )
        later[container.demand] = found[container.name]
    return {each.name: found[each.name] for each in demand.containers}


def claim_template_spec(demand: PodDemand, wishes: Wishes, names: Names) -> dict[str, Any]:
    """Return the ``spec`` of a ResourceClaimTemplate, ``resource.k8s.io/v1``.

    Another spec means another name: pods that webhooks of earlier releases admitted, and that still
    wait for a template, are then stranded (docs/decisions/0009-two-doors.md).

    Whole cards are all cores of each card: nobody else then gets one of them. Their memory is
    requested only if their author did, so that no smaller card is chosen.
    """
    driver = driver_name(names)
    asking, found = _with_requests(demand), _selectors(wishes, names)
    requests = []
    for container in asking:
        exactly: dict[str, Any] = {
            "deviceClassName": driver,
            "allocationMode": "ExactCount",
            "count": container.demand.cards,
            "capacity": {"requests": _amounts(container.demand)},
        }
        selectors = [each for _, each in found[_is_single(container.demand)]]
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
        requests.append({"name": container.name, "exactly": exactly})
    devices: dict[str, Any] = {"requests": requests}
    attribute = LINK_ATTRIBUTES.get(wishes.link)
    linked = [each.name for each in asking if attribute and each.demand.cards > 1]
    if linked:
        devices["constraints"] = [
            {"requests": [each], "matchAttribute": f"{driver}/{attribute}"} for each in linked
        ]
    return {"spec": {"devices": devices}}


def find_claim_errors(
    pod: Mapping[str, Any], demand: PodDemand, wishes: Wishes, names: Names, *, path: str = ""
) -> Iterator[FieldError]:
    """Yield why a pod with GPUs, valid otherwise, cannot get them by a claim."""
    annotations, spec = annotations_of(pod), pod.get("spec")
    if MIRROR in annotations:
        detail = "a static pod gets no GPU by a claim: create the pod through the API server"
        where = f"{path}metadata.annotations[{MIRROR}]"
        yield _error(where, annotations[MIRROR], detail, "static-pod")
    if not isinstance(spec, Mapping):
        return
    if spec.get("nodeName"):
        detail = (
            "the scheduler chooses the cards of a claim, and does not see a pod that names its "
            "node: use nodeSelector or affinity"
        )
        yield _error(f"{path}spec.nodeName", spec["nodeName"], detail, "node-named")
    listed = spec.get("resourceClaims")
    for index, each in enumerate(listed if isinstance(listed, list) else ()):
        if not isinstance(each, Mapping) or each.get("name") != CLAIM:
            continue
        if not is_template_name(each.get("resourceClaimTemplateName")):
            detail = "gpu-turnstile adds a claim with this name: choose another one"
            yield _error(f"{path}spec.resourceClaims[{index}].name", CLAIM, detail, "claim-named")
    yield from _find_limits(demand, wishes, names, path)


def _find_limits(
    demand: PodDemand, wishes: Wishes, names: Names, path: str
) -> Iterator[FieldError]:
    """Yield what is too large for any claim."""
    asking = _with_requests(demand)
    total = sum(each.demand.cards for each in asking)
    if total > MOST_RESULTS:
        detail = (
            f"its containers request {format_count(total, 'card')}, a claim has at most "
            f"{MOST_RESULTS}: request fewer, or divide the work over several pods"
        )
        yield _error(f"{path}spec", total, detail, "too-many-results")
    listed = {
        names.use_gpu_uuid: wishes.use_uuids,
        names.nouse_gpu_uuid: wishes.nouse_uuids,
        names.use_gpu_type: wishes.use_types,
        names.nouse_gpu_type: wishes.nouse_types,
    }
    longest: dict[str, int] = {}
    together, found = 0, _selectors(wishes, names)
    for container in asking:
        for key, selector in found[_is_single(container.demand)]:
            longest[key] = max(longest.get(key, 0), len(selector))
            together += len(selector)
    for key, length in longest.items():
        if length > LONGEST_SELECTOR:
            detail = (
                f"as a selector of a claim it has {length} characters, Kubernetes allows "
                f"{LONGEST_SELECTOR}: name fewer, or shorter ones"
            )
            where = f"{path}metadata.annotations[{key}]"
            yield _error(where, ",".join(listed[key]), detail, "selector-too-long")
    if together > MOST_SELECTORS:
        detail = (
            f"the selectors of all its containers have {together} characters, more than "
            f"{MOST_SELECTORS}: name fewer cards or types"
        )
        yield _error(f"{path}metadata.annotations", "use-gpu-...", detail, "selector-too-long")


def _with_requests(demand: PodDemand) -> tuple[ContainerDemand, ...]:
    """Return the containers with a request of their own."""
    used = request_names(demand)
    return tuple(each for each in demand.containers if used[each.name] == each.name)


def _amounts(demand: Demand) -> dict[str, str]:
    """Return what a container has of each of its cards, as the API server writes quantities."""
    amounts = {CORES: format_quantity(demand.cores_per_card)}
    if demand.memory:
        amounts[MEMORY] = format_quantity(demand.most_per_card(Resource.MEMORY))
    return amounts


# --- wishes as selectors --------------------------------------------------------------


def _is_single(demand: Demand) -> bool:
    """Return whether a MIG instance will do: for a share of one card."""
    return demand.is_share and demand.cards == 1


def _selectors(wishes: Wishes, names: Names) -> dict[bool, tuple[tuple[str, str], ...]]:
    """Return the selectors of cards, each with the annotation that it comes from.

    They decide as :meth:`contract.wishes.Wishes.excludes` and
    :func:`placement.capacity.is_for_shares` do, and are made once for all containers: a hostile pod
    has long wishes, and many containers. The attribute ``model`` is in lower case.

    Returns:
        Those of containers that take a MIG instance, and those of all others.
    """
    card = f"device.attributes[{_text(driver_name(names))}]"
    uuid, model = f"{card}.{UUID}", f"{card}.{MODEL}"
    found: list[tuple[str, str]] = []
    key = f"{uuid}.lowerAscii()"  # UUIDs of wishes are in lower case
    used = f"{key} in {_list(wishes.use_uuids)}"
    used_types, nouse_types = (
        [*map(_pattern, each)] for each in (wishes.use_types, wishes.nouse_types)
    )
    if wishes.use_uuids:
        found.append((names.use_gpu_uuid, used))
    if wishes.nouse_uuids:
        found.append((names.nouse_gpu_uuid, f"!({key} in {_list(wishes.nouse_uuids)})"))
    if used_types:
        found.append((names.use_gpu_type, f"{model}.matches({_text('|'.join(used_types))})"))
    if nouse_types:
        found.append((names.nouse_gpu_type, f"!{model}.matches({_text('|'.join(nouse_types))})"))
    # No MIG instance, unless its author names it: by UUID, or by what its card's name lacks.
    ways = [f'!{uuid}.startsWith("MIG-")', *([used] if wishes.use_uuids else [])]
    ways += [
        f"({model}.matches({_text(each)}) && !{model}.matches({_text(f'({each}).* mig ')}))"
        for each in used_types
    ]
    return {True: (*found,), False: (*found, (names.use_gpu_type, " || ".join(ways)))}


def _pattern(part: str) -> str:
    """Return the regular expression (RE2) of a part of a product name.

    In a node's label a dash stands for what labels cannot have (:func:`contract.text.to_label`).
    """
    dash = "(-|[^a-z0-9._-]+)" if _LABEL_TEXT.match(part) else "-"
    return _PUNCTUATION.sub(r"\\\g<0>", part).replace(r"\-", dash)


def _list(values: tuple[str, ...]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(text: str) -> str:
    r"""Return a CEL string: all but harmless characters by their number, ``\U0000005c``."""
    return '"' + _PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text) + '"'


def _error(path: str, value: object, detail: str, rule: str) -> FieldError:
    return FieldError(path, detail, rule, quote(value))
