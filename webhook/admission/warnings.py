"""Warnings about requests that are allowed but probably not intended."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from contract.demand import ContainerDemand, PodDemand
from contract.names import Names
from contract.requests import USUAL_BLOCK, walk_containers
from contract.resource import Resource
from contract.wishes import Wishes, read_wishes
from webhook.admission.decision import short
from webhook.admission.dialects.translation import NO_CORE_LIMIT

_MIB, _GIB = 2**20, 2**30
_LARGEST_CARD = 1152
"""Memory blocks of 256 MiB of NVIDIA's largest cards in 2026, which have 288 GB."""

_SET_BY_NODE = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "GPU_CORE_UTILIZATION_POLICY",
    }
)
_SET_BY_NODE_PREFIX = "CUDA_DEVICE_MEMORY_LIMIT"  # one variable for each card
_UUIDS = ("gpu-", "mig-")
"""How UUIDs of NVIDIA's begin, in lower case; a cards file may have others."""

_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
_PREFIXES = ("NVIDIA_VISIBLE_", "CUDA_DEVICE_", "GPU_CORE_")  # a fast first check of all these


def advise(
    demand: PodDemand, annotations: Mapping[str, Any], *, names: Names, path: str = ""
) -> Iterator[str]:
    """Warn of requests in a pod, or a pod template, that are probably not intended."""
    wishes, _ = read_wishes(annotations, names)
    yield from _about_core_limit(demand, wishes)
    for key, uuids in (
        (names.use_gpu_uuid, wishes.use_uuids),
        (names.nouse_gpu_uuid, wishes.nouse_uuids),
    ):
        for each in uuids:
            if not each.startswith(_UUIDS):
                field = f"{path}metadata.annotations[{key}]"
                yield f"{field}: {short(each)} is no UUID: kubectl gpu nodes"
    for key in _gpu_manager_annotations(names):
        if key in annotations:
            yield f"{path}metadata.annotations[{key}]: deprecated and ignored: use limits"


def about_memory(demand: PodDemand, largest_card: int, *, in_blocks: bool) -> Iterator[str]:
    """Warn of memory that no card has.

    *largest_card* is 0 if unknown. *in_blocks* is whether the author wrote memory in blocks, and
    may have meant MiB.
    """
    for container in demand.containers:
        for line in _about_memory(container, largest_card, in_blocks=in_blocks):
            yield f"container {short(container.name)}: {line}"


def _about_memory(
    container: ContainerDemand, largest_card: int, *, in_blocks: bool
) -> Iterator[str]:
    blocks = container.demand.most_per_card(Resource.MEMORY)
    in_mib = ceil(blocks * _MIB / USUAL_BLOCK)
    if container.demand.is_share and 0 < largest_card < blocks:
        large = in_blocks and blocks * _MIB >= USUAL_BLOCK
        hint = f": {blocks} MiB are {in_mib} of 256 MiB" if large else ""
        each = _of_each(container)
        yield f"{blocks} memory blocks{each}, but the largest known card has {largest_card}{hint}"
    elif in_blocks and not largest_card and blocks > _LARGEST_CARD:
        size = f"{blocks * USUAL_BLOCK // _GIB} GiB on one card"
        yield f"{blocks} memory blocks of 256 MiB are {size}: {blocks} MiB are {in_mib}"


def _about_core_limit(demand: PodDemand, wishes: Wishes) -> Iterator[str]:
    if wishes.core_limit is None:
        return
    for container in demand.containers:
        cores = container.demand.cores_per_card
        if container.demand.is_share and wishes.core_limit < cores:
            have = f"{cores} cores{_of_each(container)}"  # several: a limit is 1 at least
            text = f"{have}, but vcuda-core-limit allows only {wishes.core_limit}"
            yield f"container {short(container.name)}: {text}"


def _of_each(container: ContainerDemand) -> str:
    cards = container.demand.split
    return f" of each of {cards} cards" if cards > 1 else ""


def _gpu_manager_annotations(names: Names) -> tuple[str, ...]:
    # gpu-manager read requests from these annotations, we read them from limits.
    return (names.core, f"{names.domain}/vcuda-device", names.memory)


def about_runtime_class(spec: Mapping[str, Any], ours: str) -> Iterator[str]:
    """Warn of a RuntimeClass that may not add the driver's files.

    Without ``libcuda.so.1`` no CUDA program runs. With HAMi-core, which is preloaded and linked to
    it, no program of the container starts at all.

    *ours* is the RuntimeClass of GPU pods that name none; empty if unknown.
    """
    given = spec.get("runtimeClassName")
    if ours and isinstance(given, str) and given not in ("", ours) and "nvidia" not in given:
        yield (
            f"runtimeClassName {short(given)}, not {short(ours)}: it may lack libcuda, then CUDA "
            "and HAMi-core fail"
        )


def about_environment(
    spec: object, demand: PodDemand, *, translated: bool = False
) -> Iterator[str]:
    """Warn of environment variables that override those set by the node, or leave out ``libcuda``.

    The kubelet puts the variables of the pod spec after those of a device plugin. A pod that sets
    one of these, often copied from an example, overrides the node's value. NVIDIA's runtime adds
    ``libcuda.so.1`` (see :func:`about_runtime_class`) for the driver capability ``compute`` only.

    *translated* is whether an earlier call for the same request added :data:`NO_CORE_LIMIT`.
    """
    with_gpus = {each.name for each in demand.containers}
    ignored = NO_CORE_LIMIT if translated else None
    for _, _, container in walk_containers(spec):
        name = container.get("name")
        if isinstance(name, str) and name in with_gpus:
            for variable in _variables(container.get("env"), ignored):
                yield f"container {short(name)}: env {short(variable)} overrides the node's value"
            if lacked := _lacked_capability(container.get("env")):
                yield f"container {short(name)}: {_CAPABILITIES} lacks {lacked}"


def _lacked_capability(env: object) -> str:
    """Return the driver capability that a container lacks, and what fails then; empty if none.

    ``compute`` has ``libcuda``, ``utility`` has NVML, and HAMi-core is linked to both. A value from
    elsewhere (``valueFrom``) is unknown. An empty one counts as ``utility,compute``.
    """
    listed = env if isinstance(env, list) else []
    values = [
        each.get("value")
        for each in listed
        if isinstance(each, dict) and each.get("name") == _CAPABILITIES
    ]
    last = values[-1] if values else None
    capabilities = {each.strip() for each in last.split(",")} if isinstance(last, str) else {""}
    if capabilities == {""} or "all" in capabilities:
        return ""
    if "compute" not in capabilities:
        return "compute: CUDA and HAMi-core fail"
    return "" if "utility" in capabilities else "utility: HAMi-core fails"


def _variables(env: object, ignored: Mapping[str, str] | None) -> list[str]:
    """Return the names in *env* that the node sets too, but for the *ignored* variable."""
    listed = env if isinstance(env, list) else []
    names = [each.get("name") for each in listed if isinstance(each, dict) and each != ignored]
    return [
        each
        for each in names
        if isinstance(each, str)
        and each.startswith(_PREFIXES)
        and (each in _SET_BY_NODE or each.startswith(_SET_BY_NODE_PREFIX))
    ]
