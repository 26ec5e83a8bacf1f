"""NVIDIA's device plugin: ``nvidia.com/gpu`` counts whole cards.

Its time-slicing and MPS offer each card several times, also as ``nvidia.com/gpu``: a count says
nothing about memory or computing time then (``api/config/v1/replicas.go``). Here it is a card.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.errors import FieldError
from contract.other_systems import MIG_PREFIX, NVIDIA
from webhook.admission.dialects.counts import FoundCounts, walk_counts
from webhook.admission.dialects.reading import CardRequest, Reading

_COUNT, _SHARED = NVIDIA


def read_nvidia(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read a pod, or a template, that was written for NVIDIA's device plugin.

    Args:
        pod: as decoded JSON, possibly hostile.
        path: prefix of ``metadata`` and ``spec`` in paths.

    Returns:
        What its author wrote; ``None`` if no container has one of the plugin's resources.
    """
    containers = []
    errors: list[FieldError] = []
    for found in walk_counts(pod, _is_theirs, path):
        errors += [*found.errors, *_refuse_parts(found)]
        cards = found.get(_COUNT)
        containers.append(found.make_reading(CardRequest(cards) if cards else None))
    return Reading(tuple(containers), errors=tuple(errors)) if containers else None


def _is_theirs(name: str) -> bool:
    return name in NVIDIA or name.startswith(MIG_PREFIX)


def _refuse_parts(found: FoundCounts) -> Iterator[FieldError]:
    for name in found.names:
        if name == _COUNT or not found.get(name):
            continue
        if name == _SHARED:
            detail = (
                "a card shared by time-slicing or MPS, whose part is unknown: write vcuda-core "
                "and vcuda-memory for a share, or nvidia.com/gpu for a whole card"
            )
        else:
            detail = (
                "an instance of a card in MIG mode: write vcuda-core and vcuda-memory for a share"
            )
        yield found.refuse(name, detail, "not-a-whole-card")
