"""The parts of the CUDA driver API (``libcuda.so.1``) that a load needs.

The functions: https://docs.nvidia.com/cuda/cuda-driver-api/. In today's ``cuda.h``, a name without
``_v2`` means the function with it.
"""

import ctypes
from collections.abc import Sequence

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_ONE = 1, 1, 1, 1, 1
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...

_SPIN = """\
.version {version}
.target {target}
.address_size 64

.visible .entry spin(.param .u64 nanoseconds)
{{
    .reg .pred %more;
    .reg .b64 %begin, %now, %limit;
    ld.param.u64 %limit, [nanoseconds];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %more, %now, %limit;
    @%more bra again;
    ret;
}}
"""


class CudaError(Exception):
    """A function of the driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: CUresult {code}")
        self.code = code


def spin_ptx(major: int, minor: int) -> bytes:
    """Return a PTX kernel that runs for the nanoseconds in its parameter.

    The driver compiles PTX for any card that is at least as new as the PTX target. The newest
    drivers support no target below ``sm_75`` (PTX 6.3); older cards need ``sm_50``.
    """
    target, version = ("sm_75", "6.3") if (major, minor) >= (7, 5) else ("sm_50", "6.0")
    return _SPIN.format(target=target, version=version).encode() + b"\0"


class Cuda:
    """A card that is visible to this process, by CUDA's number, with its primary context.

    Raises:
        OSError: there is no ``libcuda.so.1``.
        CudaError: there is no such card, or the driver cannot create a context.
    """

    def __init__(self, number: int = 0) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", ctypes.c_uint(0))
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(number))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def capability(self) -> tuple[int, int]:
        """Return the card's compute capability."""
        found = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            arguments = ctypes.byref(value), ctypes.c_int(attribute), self._device
            self._call("cuDeviceGetAttribute", *arguments)
            found.append(value.value)
        return found[0], found[1]

    def multiprocessors(self) -> int:
        """Return the number of SMs that this process may use."""
        value = ctypes.c_int()
        arguments = ctypes.byref(value), ctypes.c_int(_MULTIPROCESSORS), self._device
        self._call("cuDeviceGetAttribute", *arguments)
        return value.value

    def bus_id(self) -> str:
        """Return the card's PCI address."""
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode()

    def memory(self) -> tuple[int, int]:
        """Return the card's memory by ``cuDeviceTotalMem`` and by ``cuMemGetInfo``, in bytes."""
        size, free, total = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return size.value, total.value

    def allocate(self, size: int) -> int:
        """Allocate *size* bytes and write to them; return their address.

        Raises:
            CudaError: its code is ``OUT_OF_MEMORY`` if there are not enough.
        """
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return address.value

    def load_spin(self) -> None:
        """Compile the kernel."""
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        image = ctypes.c_char_p(spin_ptx(*self.capability()))
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        name = ctypes.c_char_p(b"spin")
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, name)

    def spin(self, seconds: float, blocks: int = 1) -> None:
        """Run the kernel with *blocks* blocks, each for *seconds*, and wait for it."""
        length = ctypes.c_uint64(int(seconds * 1e9))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(length))
        grid_and_block: Sequence[ctypes.c_uint] = [ctypes.c_uint(each) for each in (blocks, *_ONE)]
        rest = ctypes.c_uint(0), None, parameters, None  # shared memory, stream, ..., extra
        self._call("cuLaunchKernel", self._function, *grid_and_block, *rest)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        code = int(getattr(self._lib, name)(*arguments))
        if code:
            raise CudaError(name, code)
