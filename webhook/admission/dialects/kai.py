"""KAI scheduler's GPU sharing: annotations of a pod whose containers have no resource of GPUs.

What its code means, and what becomes of it (``pkg/`` of NVIDIA/KAI-Scheduler):

- ``gpu-fraction``: part of a card's *memory*, more than 0 and less than 1, 1 is refused as there
  (``ValidateGpuRequests`` in ``binder/plugins/gpusharing/gpu-request``). It is not rounded to
  hundredths (``GetResourceGpuMemory`` in ``scheduler/api/node_info``): three pods with 0.333 each
  share a card. No cores: KAI neither counts nor limits them, containers compute in turns.
- ``gpu-memory``: MiB of a card, a whole number. Not beside ``gpu-fraction``, and neither of them
  beside ``nvidia.com/gpu`` of any container.
- ``gpu-fraction-num-devices``: the number of cards that have such a part each; 1 without it.
- The first main container gets it, or the one that ``gpu-fraction-container-name`` names, init
  containers first (``GetFractionContainerRef`` in ``binder/common``).
- ``mps`` is not kept: a warning. NVIDIA's MPS server on a node is the admin's.
- ``runai/shared-gpu-configmap`` is there after KAI's own webhook was called first, or in a copy of
  a pod. It has added a ConfigMap to the container that only KAI's binder creates: refused, because
  the container would wait for it for ever.
- ``kai.scheduler/gpu-compute-sharing-mode``, and ``kai.scheduler/container.<name>.gpu-memory...``
  with a limit above the part, came with KAI 0.18 (its issues 1524 and 2191): not kept, a warning.
- ``received-resource-type`` is a stamp of its binder: removed.
- ``spec.schedulerName: kai-scheduler`` stays, because its queues (label ``kai.scheduler/queue``)
  are an admin's quotas, which no webhook should bypass. But they do not count the pod's cards, and
  KAI asks no extender: a warning.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from typing import Any

from contract.demand import LARGEST_COUNT
from contract.errors import FieldError, quote
from contract.quantity import as_written, parse_quantity
from contract.requests import annotations_of, listings_of, walk_containers
from webhook.admission.dialects.annotation_reader import AnnotationReader
from webhook.admission.dialects.reading import CardRequest, ContainerReading, Field, Reading

_FRACTION, _MEMORY = "gpu-fraction", "gpu-memory"
_CARDS, _CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
_MPS, _CONFIG_MAP, _STAMP = "mps", "runai/shared-gpu-configmap", "received-resource-type"
_LATER = ("kai.scheduler/gpu-compute-sharing-mode", "kai.scheduler/container.")
_MOST_LATER = 8
"""Most annotations of KAI 0.18 that are named: a hostile pod may have thousands."""
_WHOLE = "nvidia.com/gpu"
_SCHEDULER = "kai-scheduler"
_LONGEST_COUNT = len(str(LARGEST_COUNT))


def read_kai(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read what a pod requests of KAI's GPU sharing; ``None`` if nothing."""
    given = annotations_of(pod)
    if _FRACTION not in given and _MEMORY not in given:
        return None
    annotations = AnnotationReader(given, path)
    percent = _read_fraction(annotations) if _FRACTION in given else None
    memory = _read_count(annotations, _MEMORY) if _MEMORY in given else None
    cards = _read_count(annotations, _CARDS) if _CARDS in given else 1
    if percent and memory:
        detail = f"{_FRACTION} is there, too: write one of them"
        annotations.refuse(_MEMORY, detail, "named-twice")
    if annotations.get(_CONFIG_MAP):
        detail = "left by KAI's webhook: the container would wait for a ConfigMap that KAI makes"
        annotations.refuse(_CONFIG_MAP, detail, "kai-config-map")
    if annotations.get(_MPS) == "true":
        annotations.warnings.append(f"{_MPS} is not kept: MPS is set up on nodes")
    for key in islice((each for each in given if each.startswith(_LATER)), _MOST_LATER):
        annotations.get(key)
        annotations.warnings.append(f"{key} is not kept")
    annotations.get(_STAMP)
    where = _find_container(pod, annotations)
    errors = (*annotations.errors, *_find_whole_cards(pod, path))
    request = None if errors else CardRequest(cards, memory=memory, percent=percent)
    return Reading(
        containers=(ContainerReading(*where, request),) if where else (),
        annotations=tuple(annotations.read),
        errors=errors,
        warnings=(*annotations.warnings, *_about_scheduler(pod, path)),
    )


def _read_count(annotations: AnnotationReader, key: str) -> int:
    """Read digits, as Go's ``ParseUint`` does: no sign, no exponent and no unit."""
    text = annotations.get(key)
    digits = text.isascii() and text.isdigit() and len(text) <= _LONGEST_COUNT
    count = int(text) if digits else 0
    if not 0 < count <= LARGEST_COUNT:
        detail = f"must be a whole number from 1 to {LARGEST_COUNT}"
        annotations.refuse(key, detail, "not-a-count")
    return count


def _read_fraction(annotations: AnnotationReader) -> Fraction | int:
    """Return hundredths of a card's memory; 0 if it is an error."""
    number = parse_quantity(annotations.get(_FRACTION))
    if number is None or not 0 < number < 1:
        detail = "must be more than 0 and less than 1, a part of a card's memory such as 0.5"
        annotations.refuse(_FRACTION, detail, "not-a-fraction")
        return 0
    return number * 100


def _find_container(
    pod: Mapping[str, Any], annotations: AnnotationReader
) -> tuple[Field, int] | None:
    """Return the container that gets it; it is an error if there is none."""
    name = annotations.get(_CONTAINER)
    named = _CONTAINER in annotations.read
    for field, index, container in walk_containers(pod.get("spec")):
        main = field == "containers"
        if container.get("name") == name if named else main:
            return "containers" if main else "initContainers", index
    key = _CONTAINER if named else annotations.read[0]
    detail = "names no container of the pod" if named else "the pod has no container"
    annotations.refuse(key, detail, "no-such-container")
    return None


def _find_whole_cards(pod: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field, index, container in walk_containers(pod.get("spec")):
        for listing, counts in zip(("limits", "requests"), listings_of(container), strict=True):
            if _WHOLE in counts:
                yield FieldError(
                    f"{path}spec.{field}[{index}].resources.{listing}[{_WHOLE}]",
                    f"the pod has {_FRACTION} or {_MEMORY}, too: KAI refuses both together",
                    "named-twice",
                    quote(as_written(counts[_WHOLE])),
                )


def _about_scheduler(pod: Mapping[str, Any], path: str) -> Iterator[str]:
    spec = pod.get("spec")
    if isinstance(spec, dict) and spec.get("schedulerName") == _SCHEDULER:
        yield f"{path}spec.schedulerName: {_SCHEDULER} stays, its queues do not count these cards"
