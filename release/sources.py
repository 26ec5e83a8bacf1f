"""Version, commit and time of the checkout."""

import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_WITHOUT_GIT = "315532800"  # 1980, the earliest time in a ZIP archive


def version() -> str:
    """Return the version of this project."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "version"
    ]
    return found


def commit() -> str:
    """Return the commit; ``unknown`` without a repository."""
    return _git("rev-parse", "HEAD") or "unknown"


def commit_time() -> int:
    """Return the time of the commit in seconds; 1980 without a repository."""
    return int(_git("log", "-1", "--format=%ct") or _WITHOUT_GIT)


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""
