"""NVIDIA's device plugin: ``nvidia.com/gpu`` counts whole cards.

Its time-slicing and MPS offer each card several times, also as ``nvidia.com/gpu``: a count says
nothing about memory or computing time then (``api/config/v1/replicas.go``). Here it is a card.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from contract.errors import FieldError
from contract.other_systems import MIG_PREFIX, NVIDIA
from webhook.admission.dialects.counts import CountedContainer, count_containers, read_containers
from webhook.admission.dialects.reading import CardRequest, Reading

_COUNT, _SHARED = NVIDIA
_SLICES = (
    "a card shared by time-slicing or MPS, whose part is unknown: write vcuda-core and "
    "vcuda-memory for a share, or nvidia.com/gpu for a whole card"
)
_MIG = (
    "an instance of a card in MIG mode: write vcuda-core 100 and use-gpu-type with its profile "
    "(agent's --mig shares), or vcuda-core and vcuda-memory for a share"
)


def read_nvidia(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read what a pod requests of NVIDIA's device plugin; ``None`` if nothing."""
    found = tuple(count_containers(pod, NVIDIA, path=path, prefix=MIG_PREFIX))
    if not found:
        return None
    containers, errors = read_containers(found, _read_request, _refuse_parts)
    return Reading(containers, errors=errors)


def _read_request(_: CountedContainer, counts: Mapping[str, int]) -> CardRequest | None:
    return CardRequest(counts[_COUNT]) if counts[_COUNT] else None


def _refuse_parts(container: CountedContainer) -> Iterator[FieldError]:
    for name, count in (container.counts or {}).items():
        if count and name != _COUNT:
            yield container.refuse(name, _SLICES if name == _SHARED else _MIG, "not-a-whole-card")
