"""Reads the use of each card and of its processes from the driver, through NVML.

Each reading has a session of its own. NVML counts sessions, and while the cards are watched
(:mod:`agent.cards.nvml`) one more costs next to nothing. A permanent session would prevent the
watch from restarting NVML, which is needed to find a card that was reset.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import pynvml

from agent.cards.card_use import CardUse, CoreSample, memory_by_process, newest_samples
from agent.cards.nvml_calls import SESSION_ERRORS, in_mig_mode, translated
from agent.cards.nvml_instances import NO_INSTANCE
from contract.inventory import is_instance_uuid

# No process has used the card since then.
_NO_SAMPLES = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS})


def read_use(uuids: Collection[str], since: int) -> dict[str, CardUse]:
    """Read the use of cards, from samples after *since*, Unix microseconds.

    Raises:
        Unavailable: NVML itself does not work.
    """
    with translated():
        pynvml.nvmlInit()
        try:
            return {uuid: _read_card(uuid, since) for uuid in uuids}
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _read_card(uuid: str, since: int) -> CardUse:
    problems: list[str] = []

    def query(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call NVML; on an error return ``None`` and add it to *problems*."""
        try:
            return call(*arguments)
        except pynvml.NVMLError as error:
            if error.value in SESSION_ERRORS:
                raise
            problems.append(f"{what}: NVML: {error}")
            return None

    handle = query("the card", pynvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return CardUse(problems=tuple(problems))
    rates = samples = instance = None
    if is_instance_uuid(uuid):
        problems.append("use of cores: NVML does not report it for MIG instances")
        instance = query("the instance", pynvml.nvmlDeviceGetGpuInstanceId, handle)
    elif query("MIG mode", in_mig_mode, handle):
        return CardUse(problems=("in MIG mode",))
    else:
        rates = query("use of cores", pynvml.nvmlDeviceGetUtilizationRates, handle)
        samples = query("cores of processes", _samples, handle, since)
    memory = query("use of memory", pynvml.nvmlDeviceGetMemoryInfo, handle)
    entries = query("memory of processes", lambda: list(_processes(handle, instance)))
    process_memory = None if entries is None else memory_by_process(entries)
    if entries is not None and process_memory is None:
        problems.append("memory of processes: the driver does not report it")
    return CardUse(
        cores=None if rates is None else int(rates.gpu),
        memory=None if memory is None else int(memory.used),
        process_cores=samples,
        process_memory=process_memory,
        problems=tuple(problems),
    )


def _samples(handle: Any, since: int) -> dict[int, int]:
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError as error:
        if error.value not in _NO_SAMPLES:
            raise
        return {}
    found = (CoreSample(each.pid, each.timeStamp, each.smUtil) for each in samples)
    return newest_samples(found, since=since)


def _processes(handle: Any, instance: int | None) -> Iterator[tuple[int, int | None]]:
    """List the processes that compute or draw on a card, and their memory.

    *instance* is the ID of a GPU instance: then only its processes.
    """
    for kind in ("Compute", "Graphics"):
        for each in _running(kind, handle, instance):
            if instance is None or each.gpuInstanceId in {instance, NO_INSTANCE}:
                yield each.pid, each.usedGpuMemory


def _running(kind: str, handle: Any, instance: int | None) -> Any:
    """List processes by the newest function, or by its predecessor with drivers before R510.

    Most MIG instances cannot draw.
    """
    try:
        return getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3")(handle)
    except pynvml.NVMLError as error:
        draws = kind == "Graphics" and instance is not None
        if draws and error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
            return ()
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v2")(handle)
