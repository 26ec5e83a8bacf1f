"""Packages whose ``__init__`` runs at their first use."""

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from common.deferred import defer

PACKAGES = ("deferred_probe", "deferred_probe.inner")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A package with another in it; the list names those whose ``__init__`` has run."""
    outer = tmp_path / "deferred_probe"
    inner = outer / "inner"
    inner.mkdir(parents=True)
    (outer / "__init__.py").write_text(
        "import sys\nsys.deferred_probe_ran.append(__name__)\n"
        "from . import inner, light\nVALUE = light.VALUE\n"
    )
    (outer / "light.py").write_text("VALUE = 7\n")
    (inner / "__init__.py").write_text(
        "import sys\nsys.deferred_probe_ran.append(__name__)\nfrom .deep import VALUE\n"
    )
    (inner / "deep.py").write_text("VALUE = 8\n")
    seen: list[str] = []
    monkeypatch.setattr(sys, "deferred_probe_ran", seen, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield seen
    for name in [each for each in sys.modules if each.partition(".")[0] == "deferred_probe"]:
        del sys.modules[name]


def test_a_module_is_imported_without_the_imports_of_its_packages(ran: list[str]) -> None:
    defer(*PACKAGES)
    assert importlib.import_module("deferred_probe.inner.deep").VALUE == 8
    assert importlib.import_module("deferred_probe.light").VALUE == 7
    assert ran == []


@pytest.fixture
def package(ran: list[str]) -> ModuleType:
    """The outer package, whose ``__init__`` has not run."""
    defer(*PACKAGES)
    return importlib.import_module("deferred_probe")


def test_a_name_of_the_init_runs_it_at_its_first_use(package: ModuleType, ran: list[str]) -> None:
    assert ran == []
    assert package.VALUE == 7
    assert ran == ["deferred_probe"]  # the inner one still waits
    assert package.inner.VALUE == 8
    assert ran == list(PACKAGES)
    assert type(package) is ModuleType


def test_an_unknown_name_is_an_ordinary_error(package: ModuleType, ran: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(AttributeError, match="'deferred_probe' has no attribute 'nothing'"):
            _ = package.nothing
    assert ran == ["deferred_probe"]


def test_an_init_that_fails_is_tried_again(package: ModuleType, tmp_path: Path) -> None:
    init = tmp_path / "deferred_probe" / "__init__.py"
    whole = init.read_text()
    init.write_text("raise ImportError('half installed')\n")
    with pytest.raises(ImportError, match="half installed"):
        _ = package.VALUE
    init.write_text(whole)
    assert package.VALUE == 7


def test_simultaneous_callers_share_one_run(package: ModuleType, ran: list[str]) -> None:
    together = threading.Barrier(8)

    def read(_: int) -> int:
        together.wait(60)
        return int(package.VALUE)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(read, range(8))] == [7] * 8
    assert ran == ["deferred_probe"]


def test_a_package_that_is_imported_already_or_absent_is_not_changed(ran: list[str]) -> None:
    before = importlib.import_module("deferred_probe")
    absent = {"no_such_package_anywhere", "no_such_package.inside", "json.nothing"}
    defer(*PACKAGES, *absent)
    assert not absent & {*sys.modules}
    assert sys.modules["deferred_probe"] is before
    assert ran == list(PACKAGES)
