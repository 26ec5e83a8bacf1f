"""Validation of a pod or a pod template: its GPU requests, and every error in them."""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.demand import PodDemand, read_pod_demand
from contract.errors import Fault, FieldError, quote
from contract.names import Names
from contract.wishes import read_wishes
from webhook.admission.annotations import annotations_of


def read_pod(
    pod: Mapping[str, Any], names: Names, *, path: str = ""
) -> tuple[PodDemand, tuple[FieldError, ...]] | None:
    """Read a pod, or the template of one: both have ``metadata`` and ``spec``.

    Args:
        pod: as decoded JSON, possibly hostile.
        names: the resource names to read.
        path: prefix of ``metadata`` and ``spec`` in paths.

    Returns:
        Its requests and every error, or ``None`` when it requests no GPU.
    """
    demand, wrong = read_pod_demand(pod.get("spec"), names, path=f"{path}spec")
    # A container that names one of our resources has a request for it, or an error.
    if not demand and not wrong:
        return None
    metadata = pod.get("metadata")
    return demand, (*_check_metadata(metadata, path), *_check_wishes(pod, names, path), *wrong)


def _check_wishes(pod: Mapping[str, Any], names: Names, path: str) -> Iterator[FieldError]:
    _, wrong = read_wishes(annotations_of(pod), names, path=path)
    yield from wrong


def _check_metadata(metadata: object, path: str) -> Iterator[FieldError]:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    for field, value in (("metadata", metadata), ("metadata.annotations", annotations)):
        if value is not None and not isinstance(value, dict):
            yield FieldError(
                f"{path}{field}", Fault.INVALID, "must be a mapping", "not-a-mapping", quote(value)
            )
