import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver.ldcache import LARGEST, Library, parse_ldcache
from agent.errors import DriverFilesError
from tests.agent.driver.driver_host import I386, X86_64, ldcache

CUDA = (X86_64, "libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1")
NAME = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=20)
ENTRIES = st.lists(st.tuples(st.sampled_from([X86_64, I386, 0x0A03, 0]), NAME, NAME), max_size=6)


@given(ENTRIES, st.booleans(), st.integers(0, 1))
def test_a_list_of_ldconfig_is_read(
    entries: list[tuple[int, str, str]], old: bool, hwcap: int
) -> None:
    listed = [(flags, name, f"/{path}") for flags, name, path in entries]
    expected = [Library(name, path, flags & 0xFF00) for flags, name, path in listed if flags & 1]
    found = parse_ldcache(ldcache(listed, old=old, hwcap=hwcap))
    assert list(found) == ([] if hwcap else expected)


@pytest.mark.parametrize("old", [False, True])
def test_a_list_that_is_cut_short_is_refused_wherever_it_ends(old: bool) -> None:
    whole = ldcache([CUDA], old=old)
    for end in range(len(whole)):
        with pytest.raises(DriverFilesError, match="run ldconfig on the host"):
            parse_ldcache(whole[:end])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(LARGEST + 1), "is longer than 16777216 bytes"),
        (b"\x7fELF" + bytes(60), "does not have the format of glibc, version 1.1"),
        (ldcache([CUDA]).replace(b"\x02", b"\x03", 1), "has the wrong byte order"),
        (ldcache([CUDA])[:20] + b"\xff" * 4 + bytes(40), "4294967295 libraries do not fit into it"),
        (ldcache([CUDA])[:48] + b"\x03" + bytes(23), "names a library outside of itself"),
    ],
)
def test_an_invalid_list_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(DriverFilesError) as caught:
        parse_ldcache(data)
    assert str(caught.value).startswith("driver-dir: /etc/ld.so.cache ")
    assert why in str(caught.value)


def test_a_library_that_cannot_be_named_is_skipped() -> None:
    odd = [(X86_64, "lib\udcff.so", "/a"), (X86_64, "a\n", "/b"), (X86_64, "liba.so", "b"), CUDA]
    assert [each.name for each in parse_ldcache(ldcache(odd))] == ["libcuda.so.1"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_the_list_of_this_machine_is_read_as_ldconfig_reads_it() -> None:
    ldconfig, cache = shutil.which("ldconfig", path="/sbin:/usr/sbin"), Path("/etc/ld.so.cache")
    if ldconfig is None or not cache.exists():
        pytest.skip("no ldconfig, or no list")
    printed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    expected = [
        (line.split()[0], line.partition(" => ")[2])
        for line in printed.splitlines()
        if " => " in line and "hwcap" not in line
    ]
    assert [(each.name, each.path) for each in parse_ldcache(cache.read_bytes())] == expected
