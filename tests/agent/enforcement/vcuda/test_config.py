"""The bytes of vcuda.config and pids.config, and what a holding becomes in them."""

import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.vcuda.config import (
    InvalidConfig,
    VcudaConfig,
    config_of,
    decode,
    decode_pids,
    encode_pids,
    legacy_bus_id,
)
from agent.errors import EnforcementError
from agent.holdings.holding import ContainerRef, Holding
from tests.agent.builders import BLOCK, holding, pod_id

UID = "27882189-b4d9-11e9-b287-ec0d9ae89a20"
CONFIG = VcudaConfig(
    pod_uid=UID,
    container_name="train",
    bus_id="0000:3B:00.0",
    memory=3 * BLOCK,
    utilization=30,
    driver=(535, 104),
)


def held(
    cores: Mapping[str, int],
    blocks: Mapping[str, int],
    *,
    core_limit: int | None = None,
) -> Holding:
    ids = (f"{card}::{number}" for card, count in cores.items() for number in range(count))
    return holding(ContainerRef(pod_id("p", UID), "train"), ids, blocks, core_limit=core_limit)


def limits(of: Holding) -> VcudaConfig:
    return config_of(of, bus_id="00000000:3b:00.0", driver_version="535.104.05", block=BLOCK)


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
        (VcudaConfig("u" * 47, "n" * 4095, "b" * 15, 2**64 - 1, 2**31 - 1, driver=(9, 7)), ()),
    ],
)
def test_a_c_program_reads_both_files(
    reader: Path, tmp_path: Path, config: VcudaConfig, pids: tuple[int, ...]
) -> None:
    (tmp_path / "vcuda.config").write_bytes(config.encode())
    (tmp_path / "pids.config").write_bytes(encode_pids(pids))
    printed = subprocess.run(
        [reader, tmp_path / "vcuda.config", tmp_path / "pids.config"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    assert printed.splitlines() == [
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pod_uid": "ü" * 24}, "pod_uid: must be at most 47 bytes, not 48: "),
        ({"container_name": "n" * 4096}, "container_name: must be at most 4095 bytes, not 4096: "),
        ({"bus_id": "b" * 16}, "bus_id: must be at most 15 bytes, not 16: "),
    ],
)
def test_text_that_does_not_fit_is_refused_and_never_cut(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnforcementError, match=f"^vcuda.config: {message}"):
        replace(CONFIG, **wrong).encode()


def test_bytes_that_are_neither_file_are_refused() -> None:
    data = CONFIG.encode()
    for cut in (b"", data[:-1], data + b"\0"):
        with pytest.raises(InvalidConfig, match=f"must be 8240 bytes, not {len(cut)}"):
            decode(cut)
    with pytest.raises(InvalidConfig, match="pod_uid: must be UTF-8"):
        decode(b"\xff" + data[1:])
    with pytest.raises(InvalidConfig, match="must be a multiple of 4 bytes, not 3"):
        decode_pids(b"\1\0\0")


def test_processes_are_listed_once_and_ascending() -> None:
    assert encode_pids([9, 3, 9, 70_000]) == struct.pack("=iii", 3, 9, 70_000)
    assert decode_pids(struct.pack("=ii", 3, 9)) == (3, 9)


SHARE, BLOCKS = {"GPU-0": 30}, {"GPU-0": 3}
HALVES, BLOCKS_OF_TWO, SIXTY = (
    {f"GPU-{card}": count for card in range(2)} for count in (30, 3, 60)
)
WHOLE = {"GPU-0": 100}
UNLIMITED = replace(CONFIG, memory=0, utilization=100, enable=False)
SOFT = replace(CONFIG, hard_limit=False)


@pytest.mark.parametrize(
    ("cores", "memory", "core_limit", "expected"),
    [
        pytest.param(SHARE, BLOCKS, None, CONFIG, id="a share"),
        pytest.param(SHARE, BLOCKS, 80, replace(SOFT, limit=80), id="a share with idle cores"),
        pytest.param(SHARE, BLOCKS, 250, replace(SOFT, limit=100), id="a card at most"),
        pytest.param(HALVES, BLOCKS_OF_TWO, None, CONFIG, id="a share of two cards: one's part"),
        pytest.param(HALVES, BLOCKS_OF_TWO, 80, replace(SOFT, limit=80), id="the same, idle cores"),
        pytest.param(SIXTY, BLOCKS, None, replace(CONFIG, utilization=60), id="120 cores of two"),
        # As gpu-manager has it; the file is there all the same, for the library exits without.
        pytest.param(WHOLE, {}, None, UNLIMITED, id="a whole card"),
        pytest.param(
            WHOLE | {"GPU-1": 100}, {}, 50, UNLIMITED, id="two whole cards with a core limit"
        ),
    ],
)
def test_a_container_is_limited_to_its_holding(
    cores: Mapping[str, int],
    memory: Mapping[str, int],
    core_limit: int | None,
    expected: VcudaConfig,
) -> None:
    assert limits(held(cores, memory, core_limit=core_limit)) == expected


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", ""),
        ("00000000:3B:00.0", "0000:3B:00.0"),
        ("3b:00.0", "0000:3B:00.0"),
        ("00010000:01:1f.7", "10000:01:1F.7"),
        ("0FFFFFFF:01:00.0", "FFFFFFF:01:00.0"),
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
        ("0000:3B:00.0\n", f'{NO_BUS_ID}: "' + r'0000:3B:00.0\n"'),
    ],
)
def test_an_invalid_bus_id_is_refused(bus_id: str, message: str) -> None:
    with pytest.raises(EnforcementError) as error:
        legacy_bus_id(bus_id)
    assert str(error.value) == f"vcuda.config: bus_id: {message}"


@pytest.mark.parametrize(
    ("version", "read"), [("535.104.05", (535, 104)), ("570.00", (570, 0)), ("", (0, 0))]
)
def test_a_driver_version_is_read(version: str, read: tuple[int, int]) -> None:
    config = config_of(held(SHARE, BLOCKS), bus_id="", driver_version=version, block=BLOCK)
    assert config == replace(CONFIG, bus_id="", driver=read)


@pytest.mark.parametrize("version", ["535", "v1.2", "535.104-beta", "9999999999.1", "٣.٤"])
def test_an_invalid_driver_version_is_refused(version: str) -> None:
    with pytest.raises(EnforcementError, match="must be numbers with dots such as 535"):
        config_of(held(SHARE, BLOCKS), bus_id="", driver_version=version, block=BLOCK)
