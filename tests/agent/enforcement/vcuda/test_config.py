"""The bytes of vcuda.config and pids.config, and what an entitlement becomes in them."""

import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.containers import ContainerRef
from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant, Share
from agent.enforcement.vcuda.config import (
    CONFIG_SIZE,
    MOST_PIDS,
    InvalidConfig,
    VcudaConfig,
    config_of,
    decode,
    decode_pids,
    encode_pids,
    legacy_bus_id,
)
from agent.errors import EnforcementError
from tests.agent.builders import BLOCK, CORE, MEMORY, patient, pod_id

UID = "27882189-b4d9-11e9-b287-ec0d9ae89a20"
CONFIG = VcudaConfig(
    pod_uid=UID,
    container_name="train",
    bus_id="0000:3B:00.0",
    memory=3 * BLOCK,
    utilization=30,
    driver=(535, 104),
)

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=15)
integers = st.integers(0, 2**31 - 1)
configs = st.builds(
    VcudaConfig,
    pod_uid=names.filter(lambda text: len(text.encode()) < 48),
    container_name=names,
    bus_id=names.filter(lambda text: len(text.encode()) < 16),
    memory=st.integers(0, 2**64 - 1),
    utilization=integers,
    hard_limit=st.booleans(),
    limit=integers,
    driver=st.tuples(integers, integers),
    enable=st.booleans(),
)


def entitled(
    cores: tuple[Share, ...],
    memory: tuple[Share, ...] = (),
    *,
    core_limit: int | None = None,
) -> Entitlement:
    return Entitlement(
        ref=ContainerRef(pod_id("p", UID), "train"),
        core_ids=frozenset({"GPU-0::0"}),
        cores=Grant(CORE, cores),
        memory=Grant(MEMORY, memory) if memory else None,
        core_limit=core_limit,
    )


def limits(entitlement: Entitlement) -> VcudaConfig:
    return config_of(
        entitlement, bus_id="00000000:3b:00.0", driver_version="535.104.05", block=BLOCK
    )


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: install gcc or clang")
    program = tmp_path_factory.mktemp("reader") / "vcuda_reader"
    source = Path(__file__).parent / "vcuda_reader.c"
    subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Werror", "-o", program, source], check=True, timeout=60
    )
    return program


@pytest.mark.parametrize(
    ("config", "pids"),
    [
        (CONFIG, (7, 300, 70_000)),
        (replace(CONFIG, hard_limit=False, limit=80), (1,)),
        (replace(CONFIG, enable=False, memory=0, utilization=100), ()),
        (
            VcudaConfig(
                "u" * 47, "n" * 4095, "b" * 15, 2**64 - 1, 2**31 - 1, driver=(2**31 - 1, 7)
            ),
            (),
        ),
        (VcudaConfig("", "", "", 0, 0), (1,)),
    ],
)
def test_a_c_program_reads_both_files(
    reader: Path, tmp_path: Path, config: VcudaConfig, pids: tuple[int, ...]
) -> None:
    (tmp_path / "vcuda.config").write_bytes(config.encode())
    (tmp_path / "pids.config").write_bytes(encode_pids(pids))
    told = subprocess.run(
        [reader, tmp_path / "vcuda.config", tmp_path / "pids.config"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    assert told.splitlines() == [
        f"pod_uid={config.pod_uid}",
        f"limit={config.limit}",
        f"container_name={config.container_name}",
        f"bus_id={config.bus_id}",
        f"gpu_memory={config.memory}",
        f"utilization={config.utilization}",
        f"hard_limit={config.hard_limit:d}",
        f"driver={config.driver[0]}.{config.driver[1]}",
        f"enable={config.enable:d}",
        *(f"pid={pid}" for pid in pids),
    ]


def test_every_field_stands_where_the_library_reads_it() -> None:
    """The same without a compiler."""
    data = replace(CONFIG, hard_limit=False, limit=80).encode()
    assert len(data) == CONFIG_SIZE == 8240
    assert data[:48] == UID.encode().ljust(48, b"\0")
    assert data[48:52] == struct.pack("=i", 80)
    assert not any(data[52:4096])
    assert data[4096:8192] == b"train".ljust(4096, b"\0")
    assert data[8192:8208] == b"0000:3B:00.0\0\0\0\0"
    assert data[8208:] == struct.pack("=QiiiiiI", 3 * BLOCK, 30, 0, 535, 104, 1, 0)


@patient
@given(configs)
def test_what_is_written_is_read(config: VcudaConfig) -> None:
    data = config.encode()
    assert len(data) == CONFIG_SIZE
    assert decode(data) == config


@patient
@given(st.sets(st.integers(1, 2**31 - 1), max_size=MOST_PIDS))
def test_pids_that_are_written_are_read_in_order(pids: set[int]) -> None:
    data = encode_pids(pids)
    assert len(data) == 4 * len(pids)
    assert decode_pids(data) == tuple(sorted(pids))


SAYS_BYTES = "must be at most 47 bytes, not 48"
IS_INT = "must be 0 to 2147483647"
IS_UINT = "must be 0 to 18446744073709551615"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pod_uid": "u" * 48}, f'pod_uid: {SAYS_BYTES}: "{"u" * 48}"'),
        ({"pod_uid": "ü" * 24}, f'pod_uid: {SAYS_BYTES}: "' + r"\u00fc" * 24 + '"'),
        (
            {"container_name": "n" * 4096},
            f'container_name: must be at most 4095 bytes, not 4096: "{"n" * 64}"...',
        ),
        (
            {"bus_id": "00000000:3B:00.0"},
            'bus_id: must be at most 15 bytes, not 16: "00000000:3B:00.0"',
        ),
        ({"container_name": "a\0b"}, r'container_name: must not hold a zero byte: "a\u0000b"'),
        ({"container_name": "a\udc80"}, r'container_name: must be text: "a\udc80"'),
        ({"memory": -1}, f"gpu_memory: {IS_UINT}: -1"),
        ({"memory": 2**64}, f"gpu_memory: {IS_UINT}: 18446744073709551616"),
        ({"utilization": 2**31}, f"utilization: {IS_INT}: 2147483648"),
        ({"limit": -5}, f"limit: {IS_INT}: -5"),
        ({"driver": (535, -1)}, f"driver_version.minor: {IS_INT}: -1"),
    ],
)
def test_what_does_not_fit_is_refused_and_never_cut(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        replace(CONFIG, **wrong).encode()
    assert str(error.value) == f"vcuda.config: {message}"


GOOD = CONFIG.encode()


def changed(at: int, data: bytes) -> bytes:
    return GOOD[:at] + data + GOOD[at + len(data) :]


NOT_UTF8 = "must be UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be 8240 bytes, not 0"),
        (GOOD[:-1], "must be 8240 bytes, not 8239"),
        (GOOD + b"\0", "must be 8240 bytes, not 8241"),
        (changed(52, b"x"), "what is between the fields must be zero"),
        (changed(8239, b"x"), "what is between the fields must be zero"),
        (changed(0, b"u" * 48), "pod_uid: must end with a zero byte"),
        (changed(8192, b"b" * 16), "bus_id: must end with a zero byte"),
        (changed(47, b"x"), "pod_uid: must be zero after its end"),
        (changed(4096, b"\xff\0"), "container_name: must be zero after its end"),
        (changed(4096, b"\xff\0\0\0\0"), f"container_name: {NOT_UTF8}"),
        (changed(48, struct.pack("=i", -1)), "limit: must not be negative: -1"),
        (changed(8216, struct.pack("=i", -30)), "utilization: must not be negative: -30"),
        (changed(8228, struct.pack("=i", -9)), "driver_version.minor: must not be negative: -9"),
        (changed(8220, struct.pack("=i", 2)), "hard_limit: must be 0 or 1: 2"),
        (changed(8232, struct.pack("=i", -1)), "enable: must be 0 or 1: -1"),
    ],
)
def test_bytes_that_are_no_config_are_told_apart(data: bytes, message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        decode(data)
    assert str(error.value) == f"vcuda.config: {message}"


@patient
@given(
    st.builds(changed, st.integers(0, CONFIG_SIZE - 4), st.binary(max_size=4))
    | st.binary(max_size=64)
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(InvalidConfig):
        assert decode(data).encode() == data
    with suppress(InvalidConfig):
        assert encode_pids(decode_pids(data[:64])) == data[:64]


def test_a_process_is_listed_once_however_often_it_is_named() -> None:
    assert decode_pids(encode_pids([9, 3, 9, 200])) == (3, 9, 200)


@pytest.mark.parametrize(
    ("pids", "message"),
    [
        ([5, 0], "pids.config: must be PIDs, 1 to 2147483647: 0"),
        ([-2], "pids.config: must be PIDs, 1 to 2147483647: -2"),
        ([2**31], "pids.config: must be PIDs, 1 to 2147483647: 2147483648"),
        (
            range(1, 1026),
            "pids.config: vcuda-controller reads 1024 processes of a container, it has 1025",
        ),
    ],
)
def test_pids_that_the_library_could_not_read_are_refused(pids: list[int], message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        encode_pids(pids)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\1\0\0", "pids.config: must be a multiple of 4 bytes, not 3"),
        (struct.pack("=ii", 7, 7), "pids.config: must ascend from 1: 7 after 7"),
        (struct.pack("=ii", 8, 7), "pids.config: must ascend from 1: 7 after 8"),
        (struct.pack("=i", 0), "pids.config: must ascend from 1: 0 after 0"),
        (struct.pack("=i", -4), "pids.config: must ascend from 1: -4 after 0"),
    ],
)
def test_bytes_that_are_no_pids_are_told_apart(data: bytes, message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        decode_pids(data)
    assert str(error.value) == message


SHARE, BLOCKS = (Share("GPU-0", 30),), (Share("GPU-0", 3),)
EIGHT = tuple(Share(f"GPU-{n}", 100) for n in range(8))
UNLIMITED = replace(CONFIG, memory=0, utilization=100, enable=False)
SOFT = replace(CONFIG, hard_limit=False)


@pytest.mark.parametrize(
    ("cores", "memory", "core_limit", "expected"),
    [
        pytest.param(SHARE, BLOCKS, None, CONFIG, id="a share"),
        pytest.param(SHARE, BLOCKS, 80, replace(SOFT, limit=80), id="a share with idle cores"),
        pytest.param(SHARE, BLOCKS, 250, replace(SOFT, limit=100), id="a card at most"),
        # As gpu-manager has it; the file is there all the same, for the library exits without.
        pytest.param(EIGHT[:1], (), None, UNLIMITED, id="a whole card"),
        pytest.param(EIGHT[:2], (), 50, UNLIMITED, id="two whole cards with a core limit"),
        pytest.param(EIGHT, (), None, UNLIMITED, id="eight whole cards"),
        pytest.param(
            EIGHT[:1], BLOCKS, 50, replace(CONFIG, utilization=100), id="a whole card with memory"
        ),
        # The library measures the first alone; and more than 100 overflows its arithmetic.
        pytest.param(
            EIGHT,
            (*BLOCKS, *(Share(f"GPU-{n}", 2) for n in range(1, 8))),
            None,
            replace(CONFIG, utilization=100),
            id="of several cards the first counts",
        ),
        pytest.param(
            EIGHT[:3],
            (Share("GPU-1", 9), Share("GPU-2", 3)),
            None,
            replace(CONFIG, utilization=100),
            id="memory on later cards alone is still a limit to work with",
        ),
    ],
)
def test_a_container_is_held_to_what_it_was_granted(
    cores: tuple[Share, ...],
    memory: tuple[Share, ...],
    core_limit: int | None,
    expected: VcudaConfig,
) -> None:
    assert limits(entitled(cores, memory, core_limit=core_limit)) == expected


def test_what_is_not_known_of_the_node_is_left_empty() -> None:
    share = entitled(SHARE, BLOCKS)
    config = config_of(share, bus_id="", driver_version="", block=BLOCK)
    assert config == replace(CONFIG, bus_id="", driver=(0, 0))
    assert decode(config.encode()) == config


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", ""),
        ("00000000:3B:00.0", "0000:3B:00.0"),
        ("0000:3b:00.0", "0000:3B:00.0"),
        ("3b:00.0", "0000:3B:00.0"),
        ("00010000:01:1f.7", "10000:01:1F.7"),
        ("0FFFFFFF:01:00.0", "FFFFFFF:01:00.0"),
        ("00FFFFFF:01:00.0", "FFFFFF:01:00.0"),
    ],
)
def test_bus_ids_of_one_device_are_one_text(written: str, read: str) -> None:
    assert legacy_bus_id(written) == read
    assert len(read) < 16


NO_BUS_ID = "must be a PCI bus id such as 0000:3B:00.0"


@pytest.mark.parametrize(
    ("bus_id", "message"),
    [
        ("10000000:01:00.0", 'must be at most 15 characters: "10000000:01:00.0"'),
        ("../../etc", f'{NO_BUS_ID}: "../../etc"'),
        ("0000:3B:00.8", f'{NO_BUS_ID}: "0000:3B:00.8"'),
        ("0000:3B:00.0\n", f'{NO_BUS_ID}: "' + r'0000:3B:00.0\n"'),
    ],
)
def test_what_is_no_bus_id_is_refused(bus_id: str, message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        legacy_bus_id(bus_id)
    assert str(error.value) == f"vcuda.config: bus_id: {message}"


@pytest.mark.parametrize(
    ("version", "read"), [("535.104.05", (535, 104)), ("570.00", (570, 0)), ("", (0, 0))]
)
def test_a_driver_version_is_read(version: str, read: tuple[int, int]) -> None:
    share = entitled(SHARE, BLOCKS)
    config = config_of(share, bus_id="", driver_version=version, block=BLOCK)
    assert config.driver == read


@pytest.mark.parametrize("version", ["535", "535.", "v1.2", "535.104-beta", "9999999999.1", "٣.٤"])
def test_what_is_no_driver_version_is_refused(version: str) -> None:
    share = entitled(SHARE, BLOCKS)
    with pytest.raises(EnforcementError) as error:
        config_of(share, bus_id="", driver_version=version, block=BLOCK)
    assert str(error.value).startswith(
        "vcuda.config: driver_version: must be numbers with dots such as 535.104.05: "
    )
