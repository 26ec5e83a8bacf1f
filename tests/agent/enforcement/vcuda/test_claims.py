"""What is believed of a container that registers, and the files that it gets."""

import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.enforcement.vcuda.claims import (
    ClaimedIdentity,
    Forbidden,
    check_claims,
    check_container,
    check_holding,
    check_runtime,
    folders_of,
)
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
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo
from tests.agent.builders import BLOCK, holding, pod_id
from tests.agent.enforcement.vcuda.vcuda_site import ID_A, ID_A2, POD_A, POD_B, UID_A, UID_B, held

REF = ContainerCgroup(ID_A, UID_A, ())
INFO = ContainerInfo("main", UID_A, ended=False)
BUS_IDS = ("00000000:3b:00.0", "0000:af:00.0")


def container(claimed: str, ref: ContainerCgroup | None = REF) -> Callable[[], object]:
    return lambda: check_container(ref, ClaimedIdentity(container_id=claimed))


def named(name: str) -> Callable[[], object]:
    return lambda: check_runtime(REF, replace(INFO, name=name))


def claiming(**claims: str) -> Callable[[], object]:
    return lambda: check_claims(ClaimedIdentity(**claims), INFO, BUS_IDS)


NO_LABEL = "its container's name is not a DNS label"


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (container("", None), "its process is in no container"),
        (container(f"crio-{ID_A2}"), f"it claims to be container 'crio-{ID_A2}'"),
        (container(ID_A[:12]), "it claims to be container 'aaaaaaaaaaaa'"),
        (container("x" * 1000), f"it claims to be container '{'x' * 80}'"),
        (lambda: check_runtime(REF, None), "the container runtime has no such container"),
        (
            lambda: check_runtime(REF, replace(INFO, pod_uid=UID_B)),
            f"its pod is {UID_A} by its cgroup, {UID_B} by the runtime",
        ),
        *(
            (
                container("", replace(REF, container_id=text)),
                f"its container's ID is not 64 hexadecimal digits: {text!r}",
            )
            for text in ("../x", ID_A[:-1], f"{ID_A}\n", ID_A.upper(), "٣" * 64)
        ),
        (named(".."), f"{NO_LABEL}: '..'"),
        (named("Main"), f"{NO_LABEL}: 'Main'"),
        (named("a\n"), f"{NO_LABEL}: 'a\\n'"),
        (named("a" * 64), f"{NO_LABEL}: '{'a' * 64}'"),
        (claiming(pod_uid=UID_B), f"it claims to be of pod '{UID_B}'"),
        (claiming(pod_uid="y" * 1000), f"it claims to be of pod '{'y' * 80}'"),
        (claiming(container_name="other"), "it claims to be container 'other'"),
        (
            claiming(bus_id="0000:99:00.0"),
            "it holds no card 0000:99:00.0, but 0000:3B:00.0, 0000:AF:00.0",
        ),
        (
            claiming(bus_id="x"),
            'vcuda.config: bus_id: must be a PCI bus id such as 0000:3B:00.0: "x"',
        ),
    ],
)
def test_a_claim_that_contradicts_the_kernel_or_the_runtime_is_refused(
    check: Callable[[], object], reason: str
) -> None:
    with pytest.raises(Forbidden) as error:
        check()
    assert str(error.value) == reason


def test_a_holding_may_lack_the_uid_but_must_not_have_another() -> None:
    check_holding(held(), INFO)
    check_holding(held(POD_A._replace(uid="")), INFO)
    check_holding(replace(held(POD_B), runtime_uid=UID_A), INFO)  # a static pod
    for other in (held(POD_B), held(name="other")):
        with pytest.raises(Forbidden, match=r"^these devices are held by "):
            check_holding(other, INFO)


@pytest.mark.parametrize(
    "claims",
    [
        ClaimedIdentity(),
        ClaimedIdentity("0000:3B:00.0", UID_A, "main", ID_A),
        ClaimedIdentity(bus_id="3b:00.0"),
        ClaimedIdentity(bus_id="00000000:AF:00.0"),
    ],
)
def test_a_claim_may_be_absent_or_true(claims: ClaimedIdentity) -> None:
    check_claims(claims, INFO, BUS_IDS)
    for claimed in ("", ID_A, f"crio-{ID_A}"):  # CRI-O's form of it
        assert check_container(REF, ClaimedIdentity(container_id=claimed)) is REF
    for uid in (None, UID_A):  # a cgroup that names no pod contradicts nothing
        assert check_runtime(replace(REF, pod_uid=uid), INFO) is INFO
    # A card whose bus ID is not known may be the one that is claimed.
    check_claims(ClaimedIdentity(bus_id="0000:99:00.0"), INFO, ("",))
    assert ClaimedIdentity("b" * 99).log_fields()["bus_id"] == "b" * 80


@pytest.mark.parametrize(
    ("claims", "folders"),
    [
        (ClaimedIdentity(), {ID_A}),
        (ClaimedIdentity(container_id=f"crio-{ID_A}"), {ID_A, f"crio-{ID_A}"}),
        (ClaimedIdentity(container_name="main"), {ID_A, "", "main"}),
        (ClaimedIdentity(container_name="main", container_id=ID_A), {ID_A, "", "main"}),
    ],
)
def test_a_container_finds_its_files_at_the_expected_paths(
    claims: ClaimedIdentity, folders: set[str]
) -> None:
    assert folders_of(claims, REF, INFO) == folders


UID = "27882189-b4d9-11e9-b287-ec0d9ae89a20"
CONFIG = VcudaConfig(
    pod_uid=UID,
    container_name="train",
    bus_id="0000:3B:00.0",
    memory=3 * BLOCK,
    utilization=30,
    driver=(535, 104),
)


def held_of(
    cores: Mapping[str, int],
    blocks: Mapping[str, int],
    *,
    core_limit: int | None = None,
) -> Holding:
    ids = (f"{card}::{number}" for card, count in cores.items() for number in range(count))
    return holding(ContainerRef(pod_id("p", UID), "train"), ids, blocks, core_limit=core_limit)


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
    given = held_of(cores, memory, core_limit=core_limit)
    versions = {"bus_id": "00000000:3b:00.0", "driver_version": "535.104.05"}
    assert config_of(given, **versions, block=BLOCK) == expected


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
    config = config_of(held_of(SHARE, BLOCKS), bus_id="", driver_version=version, block=BLOCK)
    assert config == replace(CONFIG, bus_id="", driver=read)


@pytest.mark.parametrize("version", ["535", "v1.2", "535.104-beta", "9999999999.1", "٣.٤"])
def test_an_invalid_driver_version_is_refused(version: str) -> None:
    with pytest.raises(EnforcementError, match="must be numbers with dots such as 535"):
        config_of(held_of(SHARE, BLOCKS), bus_id="", driver_version=version, block=BLOCK)
