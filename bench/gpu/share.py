"""``python -m bench.gpu.share BLOCKS MIB ...``: print what this program can use of its cards.

It prints a line for each card, by CUDA's number: its MiB by ``cuDeviceTotalMem``, ``cuMemGetInfo``
and NVML (one number if they agree), and whether half of *MIB* and then all of it can be allocated.
Then, if *BLOCKS* is not 0, it prints how many percent of the time the last card is busy with
kernels of that many blocks.
"""

import sys
import time

import pynvml

from bench.gpu.cuda import OUT_OF_MEMORY, Cuda, CudaError

_MIB = 1 << 20
_KERNEL = 0.002
_SETTLE, _SECONDS = 2.0, 3.0  # the libraries start low, and adjust eight times a second


def main(blocks: int, shares: list[int]) -> None:
    """Check as many cards as there are *shares*, in MiB."""
    pynvml.nvmlInit()
    cuda = Cuda()
    for number, share in enumerate(shares):
        cuda = Cuda(number)
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        sizes = (*cuda.memory(), pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        total = " / ".join(dict.fromkeys(str(each // _MIB) for each in sizes))
        half, whole = (_try_allocate(cuda, each * _MIB) for each in (share // 2, share))
        print(f"{cuda.bus_id()}: {total} MiB, half {half}, all {whole}", flush=True)  # noqa: T201
    if blocks:
        cuda.load_spin()
        _kernels(cuda, blocks, _SETTLE)
        busy = _kernels(cuda, blocks, _SECONDS) * _KERNEL / _SECONDS
        print(f"busy {busy:.0%}")  # noqa: T201


def _kernels(cuda: Cuda, blocks: int, seconds: float) -> int:
    """Launch kernels for *seconds*; return how many ended."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        cuda.spin(_KERNEL, blocks)
        count += 1
    return count


def _try_allocate(cuda: Cuda, size: int) -> str:
    try:
        cuda.allocate(size)
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return "refused"
    return "given"


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(each) for each in sys.argv[2:]])
