"""elastic-gpu: hundredths of a card and its memory.

What its code means, and what becomes of it:

- The README writes ``elasticgpu.io/gpu-core`` and ``gpu-memory``; the constants of scheduler and
  agent have ``elasticgpu.com`` (``apis/elasticgpu/v1alpha1/types.go`` of elastic-gpu). Authors
  write either, so both are read.
- ``gpu-core``: hundredths of a card; 100 and more are whole cards, divided without remainder
  (``NewGPURequest`` in ``pkg/scheduler/allocate.go`` of elastic-gpu-scheduler): 150 is one card,
  which a warning says. Beside whole cards ``gpu-memory`` is not read, they have all memory.
- ``gpu-memory``: MiB of one card: the agent offers one device for each
  (``NewGPUShareMemoryDevicePlugin`` in ``pkg/plugins/gpushare.go`` of elastic-gpu-agent).
- Memory without cores: cores are neither counted nor limited.
- Cores below 100 without memory: no memory is counted, so other pods get the rest of the card. A
  share here has memory: it gets as many hundredths of the memory as of the cores, with a warning.
  Whole cards would keep the others out.
- Its scheduler reads main containers only; init containers are read here as well, as the kubelet
  counts them.
- Annotations ``elasticgpu.io/assumed`` and ``elasticgpu.io/container-<name>`` are stamps of its
  scheduler: removed. ``egpuc.elasticgpu.io/<name>`` names an ElasticGPUClaim, which the webhook
  cannot read: it makes no requests. Refused: the pod would run without a card.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError, quote
from contract.other_systems import SYSTEMS, Dialect
from contract.requests import annotations_of
from webhook.admission.dialects.counts import CountedContainer, count_containers
from webhook.admission.dialects.reading import CardRequest, ContainerReading, Reading

_CORES: Final = ("elasticgpu.io/gpu-core", "elasticgpu.com/gpu-core")
_MEMORY: Final = ("elasticgpu.io/gpu-memory", "elasticgpu.com/gpu-memory")
_STAMPS = ("elasticgpu.io/assumed", "elasticgpu.io/container-")
_CLAIM = SYSTEMS[Dialect.ELASTIC_GPU].claims
_MOST_CLAIMS = 32
"""Most errors for claims of one pod: a hostile one may have thousands."""


def read_elastic_gpu(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read what a pod requests of elastic-gpu; ``None`` if nothing."""
    given = annotations_of(pod)
    errors = [
        FieldError(
            f"{path}metadata.annotations[{key}]",
            "an ElasticGPUClaim is not read: request its cores and memory in limits",
            "elastic-gpu-claim",
            quote(given[key]),
        )
        for key in islice((key for key in given if key.startswith(_CLAIM)), _MOST_CLAIMS)
    ]
    found = tuple(count_containers(pod, (*_CORES, *_MEMORY), path=path))
    if not found and not errors:
        return None
    containers, warnings = [], []
    for each in found:
        request, wrong, warning = _read(each)
        errors += wrong
        warnings += [f"container {each.name}: {warning}"] if warning else []
        containers.append(ContainerReading(each.field, each.index, request, each.resources))
    stamps = tuple(key for key in given if key.startswith(_STAMPS))
    return Reading(
        tuple(containers), annotations=stamps, errors=tuple(errors), warnings=tuple(warnings)
    )


def _read(container: CountedContainer) -> tuple[CardRequest | None, list[FieldError], str]:
    """Return a container's request, errors, and a warning that may be empty."""
    counts = container.counts
    if counts is None:
        return None, list(container.errors), ""
    errors = [
        container.refuse(second, f"{first} is there, too: write one of them", "named-twice")
        for first, second in (_CORES, _MEMORY)
        if counts[first] and counts[second]
    ]
    if errors:
        return None, errors, ""
    cores, memory = (max(counts[each] for each in names) for names in (_CORES, _MEMORY))
    if cores >= CORES_PER_CARD:
        cards, beyond = divmod(cores, CORES_PER_CARD)
        whole = f"gpu-core {cores} counts as {cards * CORES_PER_CARD}, as in elastic-gpu"
        return CardRequest(cards), [], whole if beyond else ""
    if memory:
        return CardRequest(1, cores=cores or None, memory=memory), [], ""
    if cores:
        warning = f"no gpu-memory: it gets {cores}% of a card's, elastic-gpu did not limit it"
        return CardRequest(1, cores=cores, percent=cores), [], warning
    return None, [], ""
