"""The content of the folder of driver files, chosen from the host's files. Pure.

The lists are those of NVIDIA's container runtime (libnvidia-container, ``nvc_info.c``) and of
gpu-manager (``volume.conf``). Like the runtime, take only files with the driver's version in their
name. Files of an older driver, and the distribution's libraries for all vendors (``libGL.so.1`` of
GLVND), would hide those of the image.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.errors import DriverFilesError
from common.text import cut

BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nv-fabricmanager",
)
"""Programs of the driver."""

LIBRARIES = frozenset(
    {
        *("libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"),  # management
        *("libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp"),  # computing
        *("libnvidia-ptxjitcompiler", "libnvidia-fatbinaryloader", "libnvidia-allocator"),
        *("libnvidia-compiler", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3"),
        *("libnvidia-nvvm", "libnvidia-nvvm70", "libnvidia-tileiras"),
        *("libvdpau_nvidia", "libnvidia-encode", "libnvidia-opticalflow", "libnvcuvid"),  # video
        *("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-tls", "libnvidia-glsi"),  # graphics
        *("libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore", "libnvoptix", "libnvidia-ngx"),
        *("libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia"),
        *("libnvidia-glvkspirv", "libnvidia-cbl"),
    }
)
"""Libraries of the driver, without ``.so`` and version."""

CONTROL, CLIENT = "libcuda-control.so", "gpu-client"
"""The two files of vcuda-controller."""

_WRAPPED = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")
"""The names under which vcuda-controller's library replaces the driver's libraries."""

_NAME = re.compile(r"(?P<stem>lib[A-Za-z0-9_-]+)\.so(?:\.(?P<version>[0-9]+(?:\.[0-9]+)*))?\Z")
_DRIVER_VERSION = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class HostFile:
    """A regular file of the host, with the attributes that differ if it is replaced."""

    path: str
    """Absolute path on the host, without symbolic links."""
    size: int
    changed: int
    """Time of its last modification, in ns."""
    inode: int


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A file of the host that may belong to the driver."""

    folder: str
    """``bin``, ``lib`` or ``lib64``."""
    name: str
    """The name by which it is looked up: a soname, or a program's name."""
    source: HostFile
    """The file with that name, links resolved."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of a folder for one version of the driver, by path in the folder."""

    version: str
    files: Mapping[str, HostFile]
    links: Mapping[str, str]
    """Symbolic links: each has the name of a file in its folder."""

    @property
    def name(self) -> str:
        """The version and a digest of the content."""
        text = repr((sorted(self.files.items()), sorted(self.links.items())))
        return f"{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def is_of_interest(name: str) -> bool:
    """Return whether a library with that name may belong to the driver or to vcuda-controller."""
    match = _NAME.match(name)
    return match is not None and (match["stem"] in LIBRARIES or name == CONTROL)


def choose(found: Iterable[DriverFile], *, module: str, vcuda: bool) -> Layout:
    """Choose the files of one driver, and the links by which they are looked up.

    Args:
        found: the files in the order in which the host's loader finds them; the first file with a
            name is taken.
        module: version of the kernel module; empty if it is not known.
        vcuda: whether vcuda-controller's library replaces the driver's. Containers then get no
            32-bit libraries, because there is none of vcuda-controller.

    Raises:
        DriverFilesError: there is no driver, its version differs from the kernel module's, or
            vcuda-controller is missing.
    """
    listed = tuple(found)
    version = _choose_version(listed, module)
    files: dict[str, HostFile] = {}
    links: dict[str, str] = {}
    for each in listed:
        base = posixpath.basename(each.source.path)
        if each.folder == "bin":
            if each.name in BINARIES:
                files.setdefault(f"bin/{each.name}", each.source)
        elif _version(base) == version and not (vcuda and each.folder == "lib"):
            files.setdefault(f"{each.folder}/{base}", each.source)
            for link in _links(each.name, base):
                links.setdefault(f"{each.folder}/{link}", base)
    if vcuda:
        _add_vcuda(listed, files, links)
    return Layout(version, files, {k: v for k, v in links.items() if k not in files})


def _choose_version(found: Iterable[DriverFile], module: str) -> str:
    versions = [
        _version(base)
        for each in found
        if each.folder == "lib64"
        and (base := posixpath.basename(each.source.path)).startswith("libcuda.so")
    ]
    versions = [each for each in versions if _DRIVER_VERSION.match(each)]
    if not versions:
        raise DriverFilesError(
            "driver-dir: the host's loader finds no libcuda.so.1 of a driver: install the driver, "
            "and run ldconfig on the host"
        )
    if not module:
        return versions[0]
    if module not in versions:
        raise DriverFilesError(
            f"driver-dir: the host has the libraries of driver {versions[0]}, and the kernel the "
            f"module of {cut(module, 40)}: restart the node, or reload the module"
        )
    return module


def _version(base: str) -> str:
    """Return the version in the name of a library; empty if there is none."""
    match = _NAME.match(base)
    return (match["version"] or "") if match else ""


def _links(name: str, base: str) -> Iterable[str]:
    """Return the links to a file: those that ``ldconfig`` makes, and those without version.

    Many programs open ``libcuda.so``, which otherwise only development packages have. GLVND opens
    ``libGLX_indirect.so.0``.
    """
    if name != base:
        yield name
        yield name.partition(".so")[0] + ".so"
    if name.startswith("libGLX_nvidia.so"):
        yield "libGLX_indirect.so.0"


def _add_vcuda(
    found: Iterable[DriverFile], files: dict[str, HostFile], links: dict[str, str]
) -> None:
    for folder, name in (("lib64", CONTROL), ("bin", CLIENT)):
        source = next((e.source for e in found if (e.folder, e.name) == (folder, name)), None)
        if source is None:
            raise DriverFilesError(
                f"driver-dir: the host has no {name} of vcuda-controller: put it where the host's "
                f"{'loader' if folder == 'lib64' else 'PATH'} finds it, or into "
                f"/etc/gpu-manager/vdriver/nvidia/{folder}"
            )
        files[f"{folder}/{name}"] = source
    for name in _WRAPPED:
        files.pop(f"lib64/{name}", None)
        links[f"lib64/{name}"] = CONTROL
