"""The agent against libraries of others, each of a folder that the environment names.

``docs/benchmarks.md`` has the commands that make them. A test without its library is skipped,
with the way to get it. A program prints its limits in a mount namespace with the agent's container
edits; its driver is a stand-in (``stand_in_driver.c``).
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from agent.cards.cards_file import decode_yaml
from agent.cards.inventory import parse_inventory
from agent.driver.folder import DriverFolder
from agent.driver.layout import CLIENT, CONTROL, DriverFile, HostFile, choose
from agent.enforcement.hami_library import HamiLibrary
from agent.enforcement.mps.backend import Mps
from agent.enforcement.vcuda.backend import Vcuda
from agent.enforcement.vcuda.config import Hardware
from agent.holdings.edits import ContainerEdits
from agent.injection.inject import DriverFiles
from agent.runtime.cgroups import Cgroups, ContainerCgroup
from agent.runtime.cri import ContainerInfo, Cri
from bench.gpu import confined, limits
from bench.gpu.limits import BLOCK, LimitedContainer
from bench.gpu.mps import check as check_mps
from bench.gpu.table import CheckOutcome
from contract.inventory import Card
from tests.agent.fakes import short_dir
from tests.mps.node import MpsNode

pytestmark = pytest.mark.slow

LIBRARIES: Mapping[str, str] = {
    "GPU_TURNSTILE_MOCK_NVML": "build pkg/gpu/mocknvml of NVIDIA/k8s-test-infra",
    "GPU_TURNSTILE_NVML": "apt-get download libnvidia-ml1 (Debian, non-free), dpkg -x *.deb .",
    "GPU_TURNSTILE_HAMI_CORE": "build Project-HAMi/HAMi-core",
    "GPU_TURNSTILE_VCUDA": "build tkestack/vcuda-controller, and cmd/client of gpu-manager",
}
"""What names the folder of a library, and how to get it."""

_MIB = 1 << 20
_VERSION = "535.104.05"
_BUSY, _POINTS = "busy ", 10
_SOURCE = Path(__file__).with_name("stand_in_driver.c")

CARDS = tuple(
    Card(
        f"GPU-{at}",
        at,
        "stand-in",
        size * _MIB,
        minor=at,
        bus_id=f"0000:{bus:02x}:00.0",
        device="/dev/null",
    )
    for at, (size, bus) in enumerate([(8192, 3), (4096, 1), (16384, 2)])
)
"""By NVML's index and by size they come in other orders than by PCI address."""

SHARE = LimitedContainer(30, {CARDS[1]: 2}, core_limit=60, spin=100_000)
WHOLE = LimitedContainer(100, {CARDS[1]: 2})
THREE = LimitedContainer(100, dict(zip(CARDS, (2, 3, 4), strict=True)))
HALVES = LimitedContainer(50, dict(zip(CARDS, (2, 3, 4), strict=True)))
HELD = "MiB, half given, all refused"


def folder_of(variable: str) -> Path:
    """Return the folder of a library, or skip the test."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} is not set: {LIBRARIES[variable]}")
    return Path(folder)


# --- NVML -----------------------------------------------------------------------------


def dump(folder: Path, more: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "agent", "cards", "dump"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)} | dict(more),
    )


def test_every_card_and_link_of_nvidias_mock_is_found() -> None:
    folder = folder_of("GPU_TURNSTILE_MOCK_NVML")
    profiles = sorted((folder / "configs").glob("*.yaml"))
    assert profiles
    for profile in profiles:
        done = dump(folder, {"MOCK_NVML_CONFIG": str(profile)})
        assert done.returncode == 0, (profile.stem, done.stderr)
        found = parse_inventory(decode_yaml(done.stdout))
        assert found.cards
        assert not found.unlinked(), profile.stem
        assert "# left out: " not in done.stdout


def test_a_drivers_own_library_without_a_card_is_one_line_with_its_reason() -> None:
    done = dump(folder_of("GPU_TURNSTILE_NVML"), {})
    assert done.stderr.startswith("error: cards: NVML: ")
    assert "cannot be loaded" not in done.stderr


# --- limits ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A container, and the expected output about its limits: of a program, the library, the agent.

    Attributes:
        busy: percent of the time, within ten points.
    """

    name: str
    container: LimitedContainer
    printed: tuple[str, ...]
    busy: int | None = None

    def __str__(self) -> str:
        return self.name

    def check(self, found: Sequence[str]) -> None:
        assert tuple(each for each in found if not each.startswith(_BUSY)) == self.printed
        if self.busy is not None:
            (busy,) = (int(each[len(_BUSY) : -1]) for each in found if each.startswith(_BUSY))
            assert abs(busy - self.busy) <= _POINTS


BY_HAMI = (
    Case("a share", SHARE, (f"0000:01:00.0: 512 {HELD}", "core utilization limit 30"), 30),
    Case(
        "three cards, guessed",
        THREE,
        (
            *(f"0000:01:00.0: 768 {HELD}", f"0000:02:00.0: 1024 {HELD}"),
            *(f"0000:03:00.0: 512 {HELD}", "core utilization limit 100"),
        ),
    ),
)
BY_VCUDA = (
    Case(
        "a share, more where cores are idle",
        SHARE,
        (
            *(f"0000:01:00.0: 512 / 4096 {HELD}", "limit 60", "total utilization 30"),
            *("hard limit mode 0", "enable mode 1", "registered"),
        ),
        60,
    ),
    Case(
        "a whole card",
        WHOLE,
        (
            *("0000:01:00.0: 4096 MiB, half given, all given", "limit 0", "total utilization 100"),
            *("hard limit mode 1", "enable mode 0", "registered"),
        ),
    ),
)


def build_driver(folder: Path) -> None:
    """Compile the stand-in for a driver into *folder*, under the names of its two libraries."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) for the stand-in of a driver's library")
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        built = folder / f"{name}.{_VERSION}"
        flags = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(built))
        subprocess.run([compiler, *flags, str(_SOURCE)], check=True, timeout=100)
        (folder / f"{name}.1").symlink_to(built)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    try:
        confined.check()
    except confined.NotHere as error:
        pytest.skip(str(error))
    build_driver(tmp_path / "driver")
    return tmp_path / "driver"


def variables(driver: Path, container: LimitedContainer) -> dict[str, str]:
    """Return those by which the stand-in has the cards of a container."""
    cards = sorted(container.blocks, key=lambda card: card.bus_id)
    return {
        "LD_LIBRARY_PATH": str(driver),
        "STAND_IN_CARDS": " ".join(str(card.memory // _MIB) for card in cards),
        "STAND_IN_STATE": str(driver.with_name("held")),
    }


def test_without_a_library_a_program_gets_all_of_its_card(driver: Path) -> None:
    """So what is refused below, a library has refused."""
    printed = WHOLE.run(ContainerEdits(), variables(driver, WHOLE))
    assert printed == ["0000:01:00.0: 4096 MiB, half given, all given"]


def test_hami_core_is_new_enough() -> None:
    outdated: list[bool] = []
    library = HamiLibrary(folder_of("GPU_TURNSTILE_HAMI_CORE"), on_outdated=outdated.append)
    assert library.find_problem() == ""
    assert outdated == [False]


@pytest.mark.parametrize("case", BY_HAMI, ids=str)
def test_hami_core_enforces_the_limits_of_the_agents_response(case: Case, driver: Path) -> None:
    library = folder_of("GPU_TURNSTILE_HAMI_CORE")
    given = variables(driver, case.container)
    case.check(limits.hami(case.container, library, driver.parent, given))


@pytest.mark.parametrize("case", BY_VCUDA, ids=str)
def test_vcuda_controller_registers_a_container_and_enforces_its_limits(
    case: Case, driver: Path
) -> None:
    case.check(vcuda(case.container, folder_of("GPU_TURNSTILE_VCUDA"), driver))


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch, driver: Path) -> Iterator[MpsNode]:
    """A node whose daemon, and the driver of its programs, are stand-ins."""
    for name, value in variables(driver, THREE).items():
        monkeypatch.setenv(name, value)
    with short_dir() as folder:
        node = MpsNode(folder)
        monkeypatch.setenv("PATH", f"{node.driver_dir}/bin:{os.environ['PATH']}")
        yield node


def test_mps_limits_each_of_several_cards_by_its_number(mps: MpsNode) -> None:
    enforcer = Mps(mps.root, block=BLOCK, cards=CARDS, patience=60)
    with mps.program():
        edits = enforcer.prepare_allocation(HALVES.holding)
        enforcer.prepare_start(HALVES.holding)
        (pipes, _) = edits.mounts
        found = HALVES.run(ContainerEdits(), {**edits.envs, "CUDA_MPS_PIPE_DIRECTORY": pipes.host})
    sizes = [("01", 4096), ("02", 16384), ("03", 8192)]
    assert found == [f"0000:{bus}:00.0: {mib} MiB, half given, all refused" for bus, mib in sizes]


def test_the_check_of_mps_in_make_gpu_passes(mps: MpsNode) -> None:
    """So far it has run on no real card."""
    rows = check_mps(CARDS[1])
    assert [each for each in rows if each.outcome is not CheckOutcome.RIGHT] == []
    assert len(rows) == 4


def vcuda(container: LimitedContainer, library: Path, driver: Path) -> list[str]:
    """Limit a container by vcuda-controller's files in *library*, before a stand-in."""
    state, node, results = driver.with_name("state"), Node(), list[str]()
    held = container.holding
    bus_ids = {card.uuid: card.bus_id for card in container.blocks}
    enforcer = Vcuda(
        state_dir=state,
        processes=cast(Cgroups, node),
        runtime=cast(Cri, node),
        entitled=lambda _uid, _name: held,
        hardware=Hardware(bus_ids.__getitem__, lambda: _VERSION, BLOCK),
        on_result=results.append,
    )
    enforcer.open()
    with contextlib.closing(enforcer):
        edits = enforcer.prepare_allocation(held)
        enforcer.prepare_start(held)
        # The library reads the driver's version from the kernel.
        proc = "/proc/driver/nvidia"
        print_limits = (
            f"mount -t tmpfs none /proc/driver; mkdir {proc}; echo NVRM {_VERSION} >{proc}/version"
        )
        found = container.run(
            edits.merged_with(lay_out(library, driver, state).edits()),
            {"LOGGER_LEVEL": "4"} | variables(driver, container),
            print_limits,
        )
    return found + results


def lay_out(library: Path, driver: Path, state: Path) -> DriverFiles:
    """Lay out the driver's files and vcuda-controller's as ``--driver-dir auto`` does."""
    found = []
    for at, path in (
        ("lib64", driver / "libcuda.so.1"),
        ("lib64", driver / "libnvidia-ml.so.1"),
        ("lib64", library / CONTROL),
        ("bin", library / CLIENT),
    ):
        real, status = path.resolve(), path.stat()
        source = HostFile(str(real), status.st_size, status.st_mtime_ns, status.st_ino)
        found.append(DriverFile(at, path.name, source))
    link = state / "driver" / "current"
    layout = choose(found, module=_VERSION, vcuda=True)
    DriverFolder(link).lay_out(layout, lambda source: os.open(source.path, os.O_RDONLY))
    return DriverFiles(str(link.resolve()))


class Node:
    """Kernel and container runtime: the peer's session is the container."""

    _session = 0

    def container_of(self, pid: int, /) -> ContainerCgroup:
        self._session = os.getsid(pid)
        return ContainerCgroup("c" * 64, SHARE.holding.ref.pod.uid, ())

    def pids_of(self, _: ContainerCgroup, /) -> list[int]:
        return [pid for pid, session in _sessions() if session == self._session]

    def container(self, _: str, *, within: float) -> ContainerInfo:
        ref = SHARE.holding.ref
        return ContainerInfo(ref.container, ref.pod.uid, ended=False)

    def succeeded(self, _: str, *, within: float) -> tuple[str, ...]:
        return ()


def _sessions() -> Iterator[tuple[int, int]]:
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            yield int(each.name), os.getsid(int(each.name))
