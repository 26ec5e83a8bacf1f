"""The bytes of vcuda.config and pids.config, and what an entitlement becomes in them."""

import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.model.entitlement import Entitlement
from agent.allocator.model.grant import Grant, Share
from agent.allocator.model.ledger import ContainerRef
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
    "config",
    [
        CONFIG,
        replace(CONFIG, hard_limit=False, limit=80),
        replace(CONFIG, enable=False, memory=0, utilization=100),
        VcudaConfig("u" * 47, "n" * 4095, "b" * 15, 2**64 - 1, 2**31 - 1, driver=(2**31 - 1, 7)),
        VcudaConfig("", "", "", 0, 0),
    ],
)
@pytest.mark.parametrize("pids", [(), (1,), (7, 300, 70_000)])
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            replace(CONFIG, pod_uid="u" * 48),
            f'vcuda.config: pod_uid: must be at most 47 bytes, not 48: "{"u" * 48}"',
        ),
        (
            replace(CONFIG, pod_uid="ü" * 24),
            r'vcuda.config: pod_uid: must be at most 47 bytes, not 48: "' + r"\u00fc" * 24 + '"',
        ),
        (
            replace(CONFIG, container_name="n" * 4096),
            f'vcuda.config: container_name: must be at most 4095 bytes, not 4096: "{"n" * 64}"...',
        ),
        (
            replace(CONFIG, bus_id="00000000:3B:00.0"),
            'vcuda.config: bus_id: must be at most 15 bytes, not 16: "00000000:3B:00.0"',
        ),
        (
            replace(CONFIG, container_name="a\0b"),
            r'vcuda.config: container_name: must not hold a zero byte: "a\u0000b"',
        ),
        (
            replace(CONFIG, container_name="a\udc80"),
            r'vcuda.config: container_name: must be text: "a\udc80"',
        ),
        (
            replace(CONFIG, memory=-1),
            "vcuda.config: gpu_memory: must be 0 to 18446744073709551615: -1",
        ),
        (
            replace(CONFIG, memory=2**64),
            "vcuda.config: gpu_memory: must be 0 to 18446744073709551615: 18446744073709551616",
        ),
        (
            replace(CONFIG, utilization=2**31),
            "vcuda.config: utilization: must be 0 to 2147483647: 2147483648",
        ),
        (replace(CONFIG, limit=-5), "vcuda.config: limit: must be 0 to 2147483647: -5"),
        (
            replace(CONFIG, driver=(535, -1)),
            "vcuda.config: driver_version.minor: must be 0 to 2147483647: -1",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_never_cut(wrong: VcudaConfig, message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        wrong.encode()
    assert str(error.value) == message


GOOD = CONFIG.encode()


def changed(at: int, data: bytes) -> bytes:
    return GOOD[:at] + data + GOOD[at + len(data) :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "vcuda.config: must be 8240 bytes, not 0"),
        (GOOD[:-1], "vcuda.config: must be 8240 bytes, not 8239"),
        (GOOD + b"\0", "vcuda.config: must be 8240 bytes, not 8241"),
        (changed(52, b"x"), "vcuda.config: what is between the fields must be zero"),
        (changed(8239, b"x"), "vcuda.config: what is between the fields must be zero"),
        (changed(0, b"u" * 48), "vcuda.config: pod_uid: must end with a zero byte"),
        (changed(8192, b"b" * 16), "vcuda.config: bus_id: must end with a zero byte"),
        (changed(47, b"x"), "vcuda.config: pod_uid: must be zero after its end"),
        (
            changed(4096, b"\xff\0"),
            "vcuda.config: container_name: must be zero after its end",
        ),
        (
            changed(4096, b"\xff\0\0\0\0"),
            (
                "vcuda.config: container_name: must be UTF-8: 'utf-8' codec can't decode byte "
                "0xff in position 0: invalid start byte"
            ),
        ),
        (
            changed(48, struct.pack("=i", -1)),
            "vcuda.config: limit: must not be negative: -1",
        ),
        (
            changed(8216, struct.pack("=i", -30)),
            "vcuda.config: utilization: must not be negative: -30",
        ),
        (
            changed(8228, struct.pack("=i", -9)),
            "vcuda.config: driver_version.minor: must not be negative: -9",
        ),
        (changed(8220, struct.pack("=i", 2)), "vcuda.config: hard_limit: must be 0 or 1: 2"),
        (changed(8232, struct.pack("=i", -1)), "vcuda.config: enable: must be 0 or 1: -1"),
    ],
)
def test_bytes_that_are_no_config_are_told_apart(data: bytes, message: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        decode(data)
    assert str(error.value) == message


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


def test_a_share_is_held_to_its_cores_and_its_memory() -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),))
    assert limits(share) == CONFIG


def test_a_core_limit_lets_a_share_use_idle_cores() -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),), core_limit=80)
    assert limits(share) == replace(CONFIG, hard_limit=False, limit=80)


@pytest.mark.parametrize(("asked", "written"), [(1, 1), (100, 100), (250, 100)])
def test_a_core_limit_is_a_card_at_most(asked: int, written: int) -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),), core_limit=asked)
    assert limits(share).limit == written


@pytest.mark.parametrize("core_limit", [None, 50])
@pytest.mark.parametrize("cards", [1, 2, 8])
def test_whole_cards_without_a_memory_request_are_not_limited(
    cards: int, core_limit: int | None
) -> None:
    """As gpu-manager has it; the file is there all the same, for the library exits without."""
    whole = tuple(Share(f"GPU-{n}", 100) for n in range(cards))
    assert limits(entitled(whole, core_limit=core_limit)) == replace(
        CONFIG, memory=0, utilization=100, enable=False
    )


@pytest.mark.parametrize("core_limit", [None, 50])
def test_a_whole_card_with_a_memory_request_is_held_to_that_alone(core_limit: int | None) -> None:
    whole = entitled((Share("GPU-0", 100),), (Share("GPU-0", 3),), core_limit=core_limit)
    assert limits(whole) == replace(CONFIG, utilization=100)


def test_of_several_cards_the_first_one_counts() -> None:
    """The library measures that one alone; and more than 100 overflows its arithmetic."""
    whole = entitled(
        tuple(Share(f"GPU-{n}", 100) for n in range(8)),
        (Share("GPU-0", 3), *(Share(f"GPU-{n}", 2) for n in range(1, 8))),
    )
    assert limits(whole) == replace(CONFIG, utilization=100)


def test_memory_on_later_cards_alone_is_still_a_limit_to_work_with() -> None:
    whole = entitled(
        (Share("GPU-0", 100), Share("GPU-1", 100), Share("GPU-2", 100)),
        (Share("GPU-1", 9), Share("GPU-2", 3)),
    )
    assert limits(whole) == replace(CONFIG, utilization=100)


def test_what_is_not_known_of_the_node_is_left_empty() -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),))
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


@pytest.mark.parametrize(
    ("bus_id", "message"),
    [
        (
            "10000000:01:00.0",
            'vcuda.config: bus_id: must be at most 15 characters: "10000000:01:00.0"',
        ),
        (
            "../../etc",
            'vcuda.config: bus_id: must be a PCI bus id such as 0000:3B:00.0: "../../etc"',
        ),
        (
            "0000:3B:00.8",
            'vcuda.config: bus_id: must be a PCI bus id such as 0000:3B:00.0: "0000:3B:00.8"',
        ),
        (
            "0000:3B:00.0\n",
            r'vcuda.config: bus_id: must be a PCI bus id such as 0000:3B:00.0: "0000:3B:00.0\n"',
        ),
    ],
)
def test_what_is_no_bus_id_is_refused(bus_id: str, message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        legacy_bus_id(bus_id)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("version", "read"), [("535.104.05", (535, 104)), ("570.00", (570, 0)), ("", (0, 0))]
)
def test_a_driver_version_is_read(version: str, read: tuple[int, int]) -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),))
    config = config_of(share, bus_id="", driver_version=version, block=BLOCK)
    assert config.driver == read


@pytest.mark.parametrize("version", ["535", "535.", "v1.2", "535.104-beta", "9999999999.1", "٣.٤"])
def test_what_is_no_driver_version_is_refused(version: str) -> None:
    share = entitled((Share("GPU-0", 30),), (Share("GPU-0", 3),))
    with pytest.raises(EnforcementError) as error:
        config_of(share, bus_id="", driver_version=version, block=BLOCK)
    assert str(error.value).startswith(
        "vcuda.config: driver_version: must be numbers with dots such as 535.104.05: "
    )
