"""Reads pods of all systems that the webhook accepts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from contract.other_systems import Dialect
from webhook.admission.dialects.elastic_gpu import read_elastic_gpu
from webhook.admission.dialects.gpushare import read_gpushare
from webhook.admission.dialects.hami import read_hami
from webhook.admission.dialects.kai import read_kai
from webhook.admission.dialects.nvidia import read_nvidia
from webhook.admission.dialects.reading import Reading
from webhook.admission.dialects.vgpu_manager import read_vgpu_manager
from webhook.admission.dialects.volcano import read_volcano

READERS: Final[Mapping[Dialect, Callable[..., Reading | None]]] = {
    Dialect.HAMI: read_hami,
    Dialect.VOLCANO: read_volcano,
    Dialect.VGPU_MANAGER: read_vgpu_manager,
    Dialect.GPUSHARE: read_gpushare,
    Dialect.GPUSHARE_MIB: partial(read_gpushare, memory_unit=1),
    Dialect.ELASTIC_GPU: read_elastic_gpu,
    Dialect.KAI: read_kai,
    Dialect.NVIDIA: read_nvidia,
}
"""The function that reads the pods of each system."""


def read_dialects(
    pod: Mapping[str, Any], accepted: Collection[Dialect], *, path: str
) -> dict[Dialect, Reading]:
    """Return what a pod's author wrote for each of the accepted systems.

    ``nvidia.com/gpu`` belongs to HAMi as well as to NVIDIA's device plugin. If both are accepted,
    HAMi's reading counts: it knows the memory beside it.

    Returns:
        The readings that request something or have errors.
    """
    found = {}
    for dialect, read in READERS.items():
        reading = read(pod, path=path) if dialect in accepted else None
        if reading and (reading.errors or any(each.request for each in reading.containers)):
            found[dialect] = reading
    if Dialect.HAMI in found and (plain := found.pop(Dialect.NVIDIA, None)):
        hami = found[Dialect.HAMI]
        errors = tuple(dict.fromkeys((*hami.errors, *plain.errors)))
        found[Dialect.HAMI] = replace(hami, errors=errors)
    return found
