"""What Python finds in the image: our wheel, and, linked from the tests' own, what is pinned."""

import re
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from release.__main__ import build_wheel

ROOT = Path(__file__).parents[2]


def pinned(name: str) -> dict[str, str]:
    """Read names and versions of a list of deploy/image."""
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, flags=re.MULTILINE))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, and links to what is pinned."""
    folder = tmp_path_factory.mktemp("image")
    build_wheel(folder, 1_700_000_000)
    (wheel,) = folder.glob("*.whl")
    there = folder / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(there)
    for name in pinned("requirements.txt"):
        found = distribution(name)
        for top in {each.parts[0] for each in found.files or ()} - {"..", "__pycache__"}:
            if not (there / top).exists():
                (there / top).symlink_to(Path(str(found.locate_file(top))))
    return there
