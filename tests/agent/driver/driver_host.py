"""A host with a driver: a root directory with a loader's list and the files it names."""

import struct
from collections.abc import Sequence
from pathlib import Path

from agent.driver.host import Host

X86_64, I386 = 0x0303, 0x0003
ELF = b"\x7fELF\x02\x01\x01"
Entry = tuple[int, str, str]


def ldcache(entries: Sequence[Entry], *, hwcap: int = 0, old: bool = False) -> bytes:
    """Write a loader's list as ``ldconfig`` does: flags, name and path of each library."""
    first = 48 + 24 * len(entries)
    strings, table = b"", b""
    for flags, *texts in entries:
        offsets = []
        for text in texts:
            offsets.append(first + len(strings))
            strings += text.encode("utf-8", "surrogateescape") + b"\0"
        table += struct.pack("<iIIIQ", flags, *offsets, 0, hwcap)
    head = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, 0)
    before = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + bytes(12) + bytes(4) if old else b""
    return before + head + table + strings


class DriverHost:
    lib = "usr/lib/x86_64-linux-gnu"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.module = root / "sys-module-version"
        for each in (self.lib, "usr/bin", "etc"):
            (root / each).mkdir(parents=True)
        (root / "lib").symlink_to("usr/lib")
        self.entries: list[Entry] = [(X86_64, "libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6")]

    def host(self, *, vcuda: bool = False) -> Host:
        return Host(self.root, vcuda=vcuda, machine="x86_64", module_version=self.module)

    def add(self, name: str, file: str, content: bytes = ELF, flags: int = X86_64) -> Path:
        """Put a library there, and its soname as a link to it."""
        path = self.root / self.lib / file
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        if name != file:
            link = path.with_name(name)
            link.unlink(missing_ok=True)
            link.symlink_to(file)
        self.entries.append((flags, name, f"/lib/x86_64-linux-gnu/{name}"))
        return path

    def write_cache(self) -> None:
        (self.root / "etc/ld.so.cache").write_bytes(ldcache(self.entries))

    def install(self, version: str) -> None:
        self.entries = self.entries[:1]
        for stem in ("cuda", "nvidia-ml"):
            content = ELF + f"{stem} {version}".encode()
            self.add(f"lib{stem}.so.1", f"lib{stem}.so.{version}", content)
        self.add(f"libnvidia-glcore.so.{version}", f"libnvidia-glcore.so.{version}")
        self.add("libGLX_nvidia.so.0", f"libGLX_nvidia.so.{version}")
        self.add("libGL.so.1", "libGL.so.1.7.0")  # the distribution's own
        smi = self.root / "usr/bin/nvidia-smi"
        smi.unlink(missing_ok=True)
        smi.write_bytes(ELF + version.encode())
        self.module.write_text(f"{version}\n")
        self.write_cache()


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes().decode("latin-1")
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def expected(version: str) -> dict[str, str]:
    """Return what containers find of the driver that :meth:`DriverHost.install` installs."""
    elf = ELF.decode("latin-1")
    return {
        "bin/nvidia-smi": elf + version,
        f"lib64/libcuda.so.{version}": f"{elf}cuda {version}",
        "lib64/libcuda.so.1": f"libcuda.so.{version}",
        "lib64/libcuda.so": f"libcuda.so.{version}",
        f"lib64/libnvidia-ml.so.{version}": f"{elf}nvidia-ml {version}",
        "lib64/libnvidia-ml.so.1": f"libnvidia-ml.so.{version}",
        "lib64/libnvidia-ml.so": f"libnvidia-ml.so.{version}",
        f"lib64/libnvidia-glcore.so.{version}": elf,
        f"lib64/libGLX_nvidia.so.{version}": elf,
        "lib64/libGLX_nvidia.so.0": f"libGLX_nvidia.so.{version}",
        "lib64/libGLX_nvidia.so": f"libGLX_nvidia.so.{version}",
        "lib64/libGLX_indirect.so.0": f"libGLX_nvidia.so.{version}",
    }
