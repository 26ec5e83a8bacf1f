"""``python -m bench.gpu.share MIB ...``: what this program is told and given of each card's memory.

A line for each card, by CUDA's number: its MiB by ``cuDeviceTotalMem``, ``cuMemGetInfo`` and NVML,
once where they agree, and whether half of *MIB* and then all of it is given.
"""

import sys

import pynvml

from bench.gpu.cuda import OUT_OF_MEMORY, Cuda, CudaError

_MIB = 1 << 20


def main(shares: list[int]) -> None:
    """Look at as many cards as there are *shares*."""
    pynvml.nvmlInit()
    for number, share in enumerate(shares):
        cuda = Cuda(number)
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        sizes = (*cuda.memory(), pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        told = " / ".join(dict.fromkeys(str(each // _MIB) for each in sizes))
        half, whole = (_ask(cuda, each * _MIB) for each in (share // 2, share))
        print(f"{cuda.bus_id()}: {told} MiB, half {half}, all {whole}", flush=True)  # noqa: T201


def _ask(cuda: Cuda, size: int) -> str:
    try:
        cuda.allocate(size)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return "refused"
    return "given"


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
