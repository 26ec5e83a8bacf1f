"""vgpu-manager: numbers of cards, and cores and memory of each.

What its code means, and what becomes of it (``pkg/`` of coldzerofear/vgpu-manager):

- ``nvidia.com/vgpu-number``: different cards, 16 at most (``checkNumberRequest`` in
  ``scheduler/filter``). Absent or 0 beside cores or memory is 1, as its webhook fills in
  (``MutateCreate`` in ``webhook/pod/mutate``).
- ``nvidia.com/vgpu-cores``: hundredths of each card, 100 at most (``checkCoreRequest``).
- ``nvidia.com/vgpu-memory``: MiB of each card, times ``--device-memory-factor`` of the card's node.
  It is 1 unless an admin has set it, and no pod shows it: read as 1.
- Neither cores nor memory: whole cards; no cores: neither counted nor limited; no memory: all of
  the card's (``resolveContainerNeeds`` and ``buildClaims`` in ``device/allocator``).
- ``include-gpu-type``, ``exclude-gpu-type``: parts of product names, as ours.
  ``include-gpu-uuid``, ``exclude-gpu-uuid``: *parts* of UUIDs, in any case
  (``matchDeviceSelector`` in ``util``). Ours are whole UUIDs: a part is refused, because it would
  match no card.
- ``device-scheduler-policy``, ``node-scheduler-policy``: the words of ours, in any case; any other
  word is none (``parseSchedulerPolicy``).
- ``device-topology-mode``: ``link`` and ``numa`` are preferences, which the agent always has;
  ``link-strict`` and ``numa-strict`` become ``gpu-link``. Of a single card they demand that it has
  a neighbour, which is not kept: a warning.
- ``vgpu-compute-policy``: ``fixed``, also for any unknown word, limits to the cores, as here;
  ``balance`` becomes ``vcuda-core-limit: "100"``, which is its soft limit. So does ``none``, which
  has no limit even while other containers compute: a warning.
- ``memory-scheduler-policy: virtual`` and the variable ``CUDA_MEM_OVERSOLD`` ask for memory that no
  card has. The pod gets its memory on the card, and no more: a warning. ``physical`` is always so.
- ``cross-pod-topology`` is not kept: a warning. ``stuck-grace-period`` is about its scheduler's own
  bookkeeping: removed.
- Its stamps (``predicate-node`` and others) are removed, as its webhook does.
- ``spec.schedulerName: vgpu-scheduler``, which its manifests have to name, is taken out: it only
  chooses cards of vgpu-manager.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contract.demand import CORES_PER_CARD
from contract.errors import FieldError
from contract.requests import annotations_of
from contract.wishes import POLICIES
from webhook.admission.dialects.annotation_reader import AnnotationReader
from webhook.admission.dialects.counts import CountedContainer, count_containers, read_containers
from webhook.admission.dialects.reading import CardRequest, Reading, find_variable

_NUMBER, _CORES, _MEMORY = (f"nvidia.com/vgpu-{each}" for each in ("number", "cores", "memory"))
_MOST_CARDS = 16  # MaxDeviceCount in util/shmem.go
_SCHEDULERS = ("vgpu-scheduler",)

_TYPES = ("nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type")
_UUIDS = ("nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid")
_POLICIES = ("nvidia.com/device-scheduler-policy", "nvidia.com/node-scheduler-policy")
_TOPOLOGY = "nvidia.com/device-topology-mode"
_LINKS = {"link-strict": "nvlink", "numa-strict": "numa"}
_COMPUTE = "nvidia.com/vgpu-compute-policy"
_VIRTUAL = "nvidia.com/memory-scheduler-policy"
_CROSS_POD = "nvidia.com/cross-pod-topology"
_REMOVED = (
    "nvidia.com/stuck-grace-period",
    "nvidia.com/predicate-node",
    "nvidia.com/predicate-time",
    "nvidia.com/pre-allocated",
    "nvidia.com/real-allocated",
)
_OVERSOLD = "CUDA_MEM_OVERSOLD"

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.ASCII)


def read_vgpu_manager(pod: Mapping[str, Any], *, path: str) -> Reading | None:
    """Read what a pod requests of vgpu-manager; ``None`` if nothing."""
    found = tuple(count_containers(pod, (_NUMBER, _CORES, _MEMORY), path=path))
    if not found:
        return None
    annotations = AnnotationReader(annotations_of(pod), path)
    containers, errors = read_containers(found, _read_request, _find_errors)
    _read_annotations(annotations, [each.request.cards for each in containers if each.request])
    return Reading(
        containers=containers,
        wishes=annotations.wishes,
        annotations=tuple(annotations.read),
        errors=(*errors, *annotations.errors),
        warnings=(*annotations.warnings, *_about_oversold(pod)),
        schedulers=_SCHEDULERS,
    )


def _find_errors(container: CountedContainer) -> Iterator[FieldError]:
    for name, most in ((_NUMBER, _MOST_CARDS), (_CORES, CORES_PER_CARD)):
        if container.counts and container.counts[name] > most:
            yield container.refuse(name, f"must be at most {most}, as in vgpu-manager", "too-large")


def _read_request(_: CountedContainer, counts: Mapping[str, int]) -> CardRequest | None:
    number, cores, memory = counts[_NUMBER], counts[_CORES], counts[_MEMORY]
    if not (number or cores or memory):
        return None
    return CardRequest(number or 1, cores=cores or None, memory=memory or None)


def _read_annotations(annotations: AnnotationReader, cards: Sequence[int]) -> None:
    for key in _TYPES:
        annotations.add_wish(key, annotations.get(key))
    for key in _UUIDS:
        _read_uuids(annotations, key)
    for key in _POLICIES:
        policy = annotations.get(key).lower()
        annotations.add_wish(key, policy if policy in POLICIES else "")
    mode = annotations.get(_TOPOLOGY).lower()
    if any(each > 1 for each in cards):
        annotations.add_wish(_TOPOLOGY, _LINKS.get(mode, ""))
    if mode in _LINKS and 1 in cards:
        annotations.warnings.append(f"{_TOPOLOGY}: {mode} is not kept for a single card")
    compute = annotations.get(_COMPUTE).lower()
    if compute in ("balance", "none"):
        annotations.wishes["vcuda-core-limit"] = str(CORES_PER_CARD)
    if compute == "none":
        annotations.warnings.append(f"{_COMPUTE}: none is not kept while others compute")
    if annotations.get(_VIRTUAL).lower().startswith("virt"):
        annotations.warnings.append(f"{_VIRTUAL} is not kept: memory is not oversubscribed")
    if annotations.get(_CROSS_POD).lower() == "true":
        annotations.warnings.append(f"{_CROSS_POD} is not kept")
    for key in _REMOVED:
        annotations.get(key)


def _read_uuids(annotations: AnnotationReader, key: str) -> None:
    """Read a list of UUIDs as NVML writes them: ``GPU-``, then lower case."""
    entries = (each.strip().lower() for each in annotations.get(key).split(","))
    uuids = [each.replace("gpu-", "GPU-", 1) for each in entries if each]
    if all(map(_UUID.match, uuids)):
        annotations.add_wish(key, ",".join(uuids))
    else:
        detail = "must be whole UUIDs (GPU-49aa2e6a-33f3-...): a part of one matches no card here"
        annotations.refuse(key, detail, "part-of-a-uuid")


def _about_oversold(pod: Mapping[str, Any]) -> Iterator[str]:
    for name, _ in find_variable(pod, _OVERSOLD):
        yield f"container {name}: {_OVERSOLD} is not kept: memory is not oversubscribed"
