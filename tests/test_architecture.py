"""docs/architecture.md names every package, and only files and methods that exist."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
_PATH = (
    r"`((?:agent|bench|certs|claims|common|contract|deploy|gates|placement|proxy|scheduler|simulator|"
    r"tests|view|webhook)/[\w/.-]*)`"
)
_PROGRAMS = (
    *("agent", "certs", "claims", "common", "contract", "gates", "placement", "proxy", "scheduler"),
    *("simulator", "view", "webhook"),
)


def _packages() -> set[str]:
    """The packages down to the second level; of those with rows of their own, only these."""
    found = set()
    for program in _PROGRAMS:
        below = [each.parent for each in (ROOT / program).glob("*/__init__.py")]
        if program in {"agent", "webhook"}:
            found |= {f"{program}/{each.name}/" for each in below}
        else:
            found.add(f"{program}/")
    for each in (ROOT / "agent/allocator").glob("*/__init__.py"):
        found.add(f"agent/allocator/{each.parent.name}/")
    return found


def test_every_named_path_exists() -> None:
    paths = re.findall(_PATH, PAGE)
    assert len(paths) > 20
    assert [each for each in paths if not (ROOT / each).exists()] == []


def test_every_package_has_a_row_in_the_module_map() -> None:
    _, _, section = PAGE.partition("\n## Packages\n")
    cells = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], flags=re.MULTILINE)
    assert _packages() - set(re.findall(r"`([\w/.]+)`", " ".join(cells))) == set()


def test_every_named_method_exists() -> None:
    named = re.findall(r"`(\w+)\.(\w+)` in `([\w/]+\.py)`", PAGE)
    assert named
    for owner, method, path in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        (found,) = (
            each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == owner
        )
        assert method in {each.name for each in found.body if isinstance(each, ast.FunctionDef)}


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["packages"]
    roots = {each.partition(".")[0] for each in listed}
    there = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for root in roots
        for path in (ROOT / root).rglob("__init__.py")
    }
    assert there == {*listed}
