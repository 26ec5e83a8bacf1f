"""Parser of the dynamic loader's list of libraries, ``/etc/ld.so.cache``.

The format is glibc's (``sysdeps/generic/dl-cache.h``), written by ``ldconfig`` in the byte order
of the machine::

    magic "glibc-ld.so.cache" "1.1"   20 bytes
    libraries, bytes of strings        2 x uint32
    byte order (2: little), padding    1 + 3 bytes; zeros before glibc 2.33
    offset of extensions, unused       4 + 12 bytes
    of each library: flags int32, name uint32, path uint32, OS version uint32, hwcap uint64
    strings, each with a zero at its end

Names and paths are offsets from the magic. Before glibc 2.32 the file begins with a list in an
older format ("ld.so-1.7.0"), and this list is in the strings of that one.
"""

import struct
from dataclasses import dataclass

from agent.errors import DriverFilesError

_OLD = b"ld.so-1.7.0\0"
_MAGIC = b"glibc-ld.so.cache1.1"
_HEAD = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_OLD_HEAD = struct.Struct("<12sI")
_OLD_ENTRY_SIZE = 12
_ALIGNMENT = 8
_BIG_ENDIAN = 3

LARGEST = 1 << 24
"""Bytes; the file of a host with 10,000 libraries has a tenth of it."""

_ELF = 0x0001  # the lowest bit of the type: ELF, for any C library
_ARCHITECTURE = 0xFF00

ARCHITECTURES = {
    "x86_64": {0x0300: "lib64", 0x0000: "lib"},
    "aarch64": {0x0A00: "lib64"},
    "ppc64le": {0x0500: "lib64"},
}
"""By machine (``uname -m``): the folder of libraries for each architecture that it runs."""


@dataclass(frozen=True, slots=True)
class Library:
    """One library of the list."""

    name: str
    """The name by which the loader looks it up, mostly its soname."""
    path: str
    """Absolute path on the host, often a symbolic link."""
    architecture: int


def parse_ldcache(data: bytes) -> tuple[Library, ...]:
    """Return the ELF libraries that any processor can load, in the loader's order.

    Raises:
        DriverFilesError: the bytes are not such a list, or are inconsistent.
    """
    if len(data) > LARGEST:
        raise _bad(f"is longer than {LARGEST} bytes")
    table = data[_start(data) :]
    if len(table) < _HEAD.size:
        raise _bad("is cut short")
    magic, count, _strings, order, _extensions = _HEAD.unpack_from(table)
    if magic != _MAGIC:
        raise _bad("does not have the format of glibc, version 1.1")
    if order == _BIG_ENDIAN:
        raise _bad("has the wrong byte order")
    strings = _HEAD.size + count * _ENTRY.size
    if strings > len(table):
        raise _bad(f"is cut short: {count} libraries do not fit into it")
    found = []
    for flags, name, path, _version, hwcap in _ENTRY.iter_unpack(table[_HEAD.size : strings]):
        # Each library for certain processors (hwcap) has a variant for all.
        if flags & _ELF and not hwcap:
            texts = _text(table, name, strings), _text(table, path, strings)
            if texts[1].startswith("/") and all(map(str.isprintable, texts)):
                found.append(Library(*texts, flags & _ARCHITECTURE))
    return tuple(found)


def _start(data: bytes) -> int:
    """Return where the newer list begins."""
    if not data.startswith(_OLD):
        return 0
    if len(data) < _OLD_HEAD.size:
        raise _bad("is cut short")
    _, count = _OLD_HEAD.unpack_from(data)
    end = _OLD_HEAD.size + int(count) * _OLD_ENTRY_SIZE
    return end + -end % _ALIGNMENT


def _text(table: bytes, offset: int, first: int) -> str:
    end = table.find(b"\0", offset) if first <= offset < len(table) else -1
    if end < 0:
        raise _bad("names a library outside of itself")
    # Bytes that are not UTF-8 become unprintable; no library of a driver has them.
    return table[offset:end].decode("utf-8", "surrogateescape")


def _bad(why: str) -> DriverFilesError:
    return DriverFilesError(f"driver-dir: /etc/ld.so.cache {why}: run ldconfig on the host")
