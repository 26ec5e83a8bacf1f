"""The agent against libraries of others, each of a folder that the environment names.

``GPU_TURNSTILE_MOCK_NVML`` is NVIDIA's mock of NVML (k8s-test-infra, ``pkg/gpu/mocknvml``, where
``make`` has built it), ``GPU_TURNSTILE_NVML`` a folder with a driver's own ``libnvidia-ml.so.1``
on a machine without a card, ``GPU_TURNSTILE_HAMI_CORE`` one with a built ``libvgpu.so``. What is
not named is skipped, and the table says so.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from agent.cards.cards_file import decode_yaml
from agent.cards.inventory import parse_inventory
from agent.enforcement.hami_library import HamiLibrary
from bench.result import Goal, Result, Table

NAME = "libraries"
VARIABLES = {
    "GPU_TURNSTILE_MOCK_NVML": "NVIDIA's mock of NVML",
    "GPU_TURNSTILE_NVML": "NVML without a card",
    "GPU_TURNSTILE_HAMI_CORE": "HAMi-core",
}
"""What names a folder, and the library that is in it."""

_SECONDS = 120
Row = tuple[str, str, str, str]


def run(environment: Mapping[str, str] = os.environ) -> Result:
    """Try each library that *environment* names."""
    rows: list[Row] = []
    looks = (_mock, _without_card, _hami)
    for (variable, what), look in zip(VARIABLES.items(), looks, strict=True):
        folder = environment.get(variable, "")
        rows += look(Path(folder)) if folder else [(what, "", f"{variable} is not set", "skipped")]
    wrong = sum(each[3] == "wrong" for each in rows)
    table = Table("Libraries of others", ("library", "expected", "found", ""), rows)
    return Result(NAME, (table,), (Goal("libraries that disagree", 0, wrong),))


def _mock(folder: Path) -> list[Row]:
    """Discover the cards of each profile."""
    profiles = sorted((folder / "configs").glob("*.yaml"))
    if not profiles:
        return [("NVIDIA's mock of NVML", "profiles", f"none in {folder}/configs", "wrong")]
    rows = []
    for profile in profiles:
        code, text, errors = _dump(folder, {"MOCK_NVML_CONFIG": str(profile)})
        if code:
            rows.append((profile.stem, "cards", errors, "wrong"))
            continue
        found = parse_inventory(decode_yaml(text))
        model = found.cards[0].model
        left_out = text.count("# left out: ")
        linked = not found.unlinked()
        rows.append(
            _row(
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
    return [_row("NVML without a card", "one line that names NVML's reason", errors, right=right)]


def _hami(folder: Path) -> list[Row]:
    """Check the age of a library, as the agent does."""
    outdated: list[bool] = []
    library = HamiLibrary(folder, on_outdated=outdated.append)
    if not library.present():
        found = f"{library.path} is not there"
    else:
        found = "too old" if outdated[0] else "new enough"
    return [_row("HAMi-core", "new enough", found, right=found == "new enough")]


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


def _row(what: str, expected: str, found: str, *, right: bool) -> Row:
    return what, expected, found, "right" if right else "wrong"
