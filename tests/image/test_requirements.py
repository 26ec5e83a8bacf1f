"""The lists of packages have what the project needs, each with its hash, and nothing else."""

import re
import tomllib
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.image.conftest import ROOT, pinned

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def needed_by(wanted: list[Requirement], versions: dict[str, str]) -> set[str]:
    """Return the names of all that *wanted* needs, by what is installed here.

    A range is compared with the list if it is of the project, or of a package installed as pinned.
    """
    found: set[str] = set()
    waiting = [(each, True) for each in wanted]
    while waiting:
        needed, as_pinned = waiting.pop()
        name = canonicalize_name(needed.name)
        if as_pinned:
            assert versions.get(name, "nothing") in needed.specifier, needed
        if name not in found:
            found.add(name)
            waiting += [
                (each, version(name) == versions.get(name))
                for each in map(Requirement, requires(name) or ())
                if each.marker is None or each.marker.evaluate({"extra": ""})
            ]
    return found


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.txt", PROJECT["project"]["dependencies"]),
        ("build-requirements.txt", PROJECT["build-system"]["requires"]),
    ],
)
def test_the_list_has_every_requirement_with_its_hash_and_nothing_else(
    name: str, wanted: list[str]
) -> None:
    """pip refuses what is not in the list, and installs what nothing needs any more."""
    versions = pinned(name)
    unneeded = versions.keys() - needed_by([Requirement(each) for each in wanted], versions)
    assert not unneeded, f"make {name} again (CONTRIBUTING.md), nothing needs {unneeded}"
    text = (ROOT / "deploy/image" / name).read_text(encoding="utf-8")
    for entry in re.findall(r"^[a-z0-9](?:.*\\\n)*.*", text, flags=re.MULTILINE):
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text  # from the index that the builder's pip uses
