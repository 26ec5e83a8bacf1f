"""``python -m bench.gpu.share MIB ...``: what this program is told and given of each card's memory.

For each card, by CUDA's number, a line of JSON: its MiB by CUDA and by NVML, and whether half of
*MIB* and then all of it is given.
"""

import json
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
        given = [_given(cuda, each * _MIB) for each in (share // 2, share)]
        line = cuda.bus_id(), *(each // _MIB for each in sizes), *given
        print(json.dumps(line), flush=True)  # noqa: T201


def _given(cuda: Cuda, size: int) -> bool:
    try:
        cuda.allocate(size)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return False
    return True


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]])
