"""Validation of a pod or a pod template: its GPU requests, and all errors in them."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from contract.claims import find_claim_errors
from contract.demand import PodDemand
from contract.errors import FieldError, FieldFault, quote
from contract.names import Names
from contract.requests import annotations_of, read_pod_demand
from contract.spelling import advise_names, find_misnamed
from contract.wishes import read_wishes
from webhook.admission.claims import Claims
from webhook.admission.privileged import Privileged, check_privileged


class ReadPod(NamedTuple):
    """The GPU requests of a pod or a pod template, and what is wrong with them.

    Attributes:
        demand: the requests that can be read.
        errors: reasons to deny it.
        warnings: about resources of other domains and systems, and privileged containers.
    """

    demand: PodDemand
    errors: tuple[FieldError, ...]
    warnings: tuple[str, ...] = ()


def read_pod(
    pod: Mapping[str, Any],
    names: Names,
    *,
    path: str = "",
    privileged: Privileged = Privileged.WARN,
    claims: Claims = Claims.OFF,
) -> ReadPod | None:
    """Read a pod or a pod template: both have ``metadata`` and ``spec``.

    Returns:
        The result; ``None`` if the pod requests no GPU, nor anything that was meant as one.
        ``nvidia.com/gpu`` alone is no reason to warn: another plugin may serve it.
    """
    demand, errors = read_pod_demand(pod, names, path=path)
    found = find_misnamed(pod, names, path=path)
    misspelt = tuple(each.error for each in found if each.error)
    asks = bool(demand or errors)
    if not asks and all(each.usual for each in found):
        return None
    warnings = advise_names(each for each in found if not each.error)
    if not asks:
        return ReadPod(demand, misspelt, warnings)
    # That vcuda-core is missing says nothing new if vcuda-cores is there.
    explained = {each.replaces for each in found if each.error}
    errors = tuple(
        each
        for each in errors
        if each.fault is not FieldFault.REQUIRED or each.path not in explained
    )
    wishes, wrong = read_wishes(annotations_of(pod), names, path=path)
    in_metadata = (*_check_metadata(pod.get("metadata"), path), *wrong)
    denied, warned = check_privileged(pod.get("spec"), privileged, path=f"{path}spec")
    if claims is Claims.ON:
        errors = (*errors, *find_claim_errors(pod, demand, wishes, names, path=path))
    return ReadPod(demand, (*in_metadata, *misspelt, *errors, *denied), (*warnings, *warned))


def _check_metadata(metadata: object, path: str) -> Iterator[FieldError]:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    for field, value in (("metadata", metadata), ("metadata.annotations", annotations)):
        if value is not None and not isinstance(value, dict):
            yield FieldError(f"{path}{field}", "must be a mapping", "not-a-mapping", quote(value))
