"""The agent against libraries of others, each of a folder that the environment names.

``GPU_TURNSTILE_MOCK_NVML`` is NVIDIA's mock of NVML (k8s-test-infra, ``pkg/gpu/mocknvml``, where
``make`` has built it), ``GPU_TURNSTILE_NVML`` a folder with a driver's own ``libnvidia-ml.so.1``
on a machine without a card, ``GPU_TURNSTILE_HAMI_CORE`` one with a built ``libvgpu.so``,
``GPU_TURNSTILE_VCUDA`` one with ``libcuda-control.so`` and ``gpu-client``; docs/benchmarks.md has
the commands that make them. What is not named is skipped, and the table says so.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from agent.cards.cards_file import decode_yaml
from agent.cards.inventory import parse_inventory
from agent.driver.layout import CLIENT, CONTROL
from agent.enforcement.hami_library import HamiLibrary
from agent.errors import EnforcementError
from bench import confined, limits
from bench.confined import NotHere, ProgramFailed
from bench.gpu.table import Outcome, Row, row, skipped
from bench.limits import Container, Limit
from bench.result import Goal, Result, Table
from contract.inventory import Card

NAME = "libraries"

_SECONDS = 120
_MIB = 1 << 20
_BUSY, _POINTS = "busy ", 10

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

_SHARE = Container(30, {CARDS[1]: 2}, core_limit=60, spin=100_000)
_WHOLE = Container(100, {CARDS[1]: 2})
_THREE = Container(100, dict(zip(CARDS, (2, 3, 4), strict=True)))
_HELD = "MiB, half given, all refused"


@dataclass(frozen=True, slots=True)
class Case:
    """A container, and what should be said of its limits: by a program, the library, the agent."""

    name: str
    container: Container
    said: tuple[str, ...]
    busy: int | None = None
    """Percent of the time, within ten points."""

    def __str__(self) -> str:
        """Write what should be said."""
        busy = () if self.busy is None else (f"{_BUSY}{self.busy}% ± {_POINTS}",)
        return "; ".join((*self.said, *busy))

    def agrees(self, found: Sequence[str]) -> bool:
        """Return whether what was said is what should be."""
        said = tuple(each for each in found if not each.startswith(_BUSY))
        busy = [int(each[len(_BUSY) : -1]) for each in found if each.startswith(_BUSY)]
        near = self.busy is None or any(abs(each - self.busy) <= _POINTS for each in busy)
        return said == self.said and near


BY_HAMI = (
    Case("a share", _SHARE, (f"0000:01:00.0: 512 {_HELD}", "core utilization limit 30"), 30),
    Case(
        "three cards, guessed",
        _THREE,
        (
            *(f"0000:01:00.0: 768 {_HELD}", f"0000:02:00.0: 1024 {_HELD}"),
            *(f"0000:03:00.0: 512 {_HELD}", "core utilization limit 100"),
        ),
    ),
)
BY_VCUDA = (
    Case(
        "a share, more where cores are idle",
        _SHARE,
        (
            *(f"0000:01:00.0: 512 / 4096 {_HELD}", "limit 60", "total utilization 30"),
            *("hard limit mode 0", "enable mode 1", "registered"),
        ),
        60,
    ),
    Case(
        "a whole card",
        _WHOLE,
        (
            *("0000:01:00.0: 4096 MiB, half given, all given", "limit 0", "total utilization 100"),
            *("hard limit mode 1", "enable mode 0", "registered"),
        ),
    ),
)


def run(environment: Mapping[str, str] = os.environ) -> Result:
    """Try each library that *environment* names."""
    rows: list[Row] = []
    for variable, (what, look, get) in VARIABLES.items():
        folder = environment.get(variable, "")
        rows += look(Path(folder)) if folder else [skipped(what, f"{variable} is not set: {get}")]
    wrong = sum(each.outcome is Outcome.WRONG for each in rows)
    cells = [tuple(map(str, astuple(each))) for each in rows]
    note = "Sizes: cuDeviceTotalMem / cuMemGetInfo / NVML, once where they agree."
    table = Table("Libraries of others", ("library", "expected", "found", ""), cells, (note,))
    return Result(NAME, (table,), (Goal("libraries that disagree", 0, wrong),))


def _mock(folder: Path) -> list[Row]:
    """Discover the cards of each profile."""
    profiles = sorted((folder / "configs").glob("*.yaml"))
    if not profiles:
        return [row(_MOCK, "profiles", f"none in {folder}/configs", right=False)]
    rows = []
    for profile in profiles:
        code, text, errors = _dump(folder, {"MOCK_NVML_CONFIG": str(profile)})
        if code:
            rows.append(row(profile.stem, "cards", errors, right=False))
            continue
        found = parse_inventory(decode_yaml(text))
        model = found.cards[0].model
        left_out = text.count("# left out: ")
        linked = not found.unlinked()
        rows.append(
            row(
                profile.stem,
                "every card, and every link",
                f"{len(found.cards)} x {model}, {left_out} left out, "
                + ("all linked" if linked else "links missing"),
                right=linked and not left_out,
            )
        )
    return rows


def _without_card(folder: Path) -> list[Row]:
    """Look for cards through the driver's own library, where no driver is loaded."""
    _, _, errors = _dump(folder, {})
    right = errors.startswith("error: cards: NVML: ") and "cannot be loaded" not in errors
    return [row(_WITHOUT_CARD, "one line that names NVML's reason", errors, right=right)]


def _hami(folder: Path) -> list[Row]:
    """Check the age of the library as the agent does, then limit containers by it."""
    outdated: list[bool] = []
    library = HamiLibrary(folder, on_outdated=outdated.append)
    if not library.present():
        return [row(_HAMI, "new enough", f"{library.path} is not there", right=False)]
    found = "too old" if outdated[0] else "new enough"
    rows = [row(_HAMI, "new enough", found, right=not outdated[0])]
    return rows + [_limit(each, _HAMI, limits.hami, folder) for each in BY_HAMI]


def _vcuda(folder: Path) -> list[Row]:
    """Limit containers by the library, which registers them by its client."""
    for each in (folder / CONTROL, folder / CLIENT):
        if not each.is_file():
            return [row(_VCUDA, "two files", f"{each} is not there", right=False)]
    return [_limit(each, _VCUDA, limits.vcuda, folder) for each in BY_VCUDA]


def _limit(case: Case, by: str, limit: Limit, library: Path) -> Row:
    """Compare what is said of a container's limits, on a driver of its own, with what should be."""
    what = f"{by}: {case.name}"
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own)
        try:
            confined.check()
            variables = limits.stand_in(folder, case.container.blocks)
            said = limit(case.container, library, folder, variables)
        except NotHere as error:
            return skipped(what, str(error))
        except (ProgramFailed, EnforcementError) as error:
            return row(what, str(case), str(error), right=False)
    found = "; ".join(sorted(said, key=lambda each: each.startswith(_BUSY)))
    return row(what, str(case), found, right=case.agrees(said))


def _dump(folder: Path, more: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "cards", "dump"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(folder)} | dict(more),
    )
    return done.returncode, done.stdout, done.stderr.strip()


_MOCK, _WITHOUT_CARD = "NVIDIA's mock of NVML", "NVML without a card"
_HAMI, _VCUDA = "HAMi-core", "vcuda-controller"

VARIABLES: Mapping[str, tuple[str, Callable[[Path], list[Row]], str]] = {
    "GPU_TURNSTILE_MOCK_NVML": (_MOCK, _mock, "build pkg/gpu/mocknvml of NVIDIA/k8s-test-infra"),
    "GPU_TURNSTILE_NVML": (
        _WITHOUT_CARD,
        _without_card,
        "apt-get download libnvidia-ml1 (Debian, non-free), dpkg -x libnvidia-ml1_*.deb .",
    ),
    "GPU_TURNSTILE_HAMI_CORE": (_HAMI, _hami, "build Project-HAMi/HAMi-core"),
    "GPU_TURNSTILE_VCUDA": (
        _VCUDA,
        _vcuda,
        "build tkestack/vcuda-controller, and cmd/client of tkestack/gpu-manager",
    ),
}
"""What names a folder, the library that is in it, how it is looked at, and how to get it."""
