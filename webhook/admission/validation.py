"""What a pod, or the template of one, asks for, and everything that is wrong with it."""

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
        path: what stands before ``metadata`` and ``spec`` in the paths of findings.

    Returns:
        What it asks for and every finding, or ``None`` when it asks for no GPU.
    """
    demand, wrong = read_pod_demand(pod.get("spec"), names, path=f"{path}spec")
    # Who mentions one of our resources asks for some of it, or is told what is wrong with it.
    if not demand and not wrong:
        return None
    metadata = pod.get("metadata")
    return demand, (*_check_metadata(metadata, path), *_check_wishes(pod, names, path), *wrong)


def _check_wishes(pod: Mapping[str, Any], names: Names, path: str) -> Iterator[FieldError]:
    """Check the form of what its author wishes of the cards."""
    _, wrong = read_wishes(annotations_of(pod), names, path=path)
    yield from wrong


def _check_metadata(metadata: object, path: str) -> Iterator[FieldError]:
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    for field, value in (("metadata", metadata), ("metadata.annotations", annotations)):
        if value is not None and not isinstance(value, dict):
            yield FieldError(
                f"{path}{field}", Fault.INVALID, "must be a mapping", "not-a-mapping", quote(value)
            )
