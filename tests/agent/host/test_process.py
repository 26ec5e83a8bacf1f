"""The process is kept small where the C library lets it, and may have many files open."""

import ctypes
import gc
import resource
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from agent.host import process
from agent.host.process import raise_limit
from tests.agent.builders import raising


def test_all_threads_share_two_arenas_where_the_library_knows_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: told.append(option))
    for each in (library, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, each=each: each)
        process.limit_arenas()
    assert told == [(-8, 2)]


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_is_there_is_left_out_of_the_collections_to_come() -> None:
    before = gc.get_freeze_count()
    process.freeze()
    assert gc.get_freeze_count() > before


def test_the_soft_limit_becomes_the_hard_one_unless_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 512)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    assert raise_limit() == 512
    assert limits == {resource.RLIMIT_NOFILE: (512, 512)}

    limits[resource.RLIMIT_NOFILE] = 64, -1
    monkeypatch.setattr(resource, "setrlimit", raising(ValueError("not allowed")))
    assert raise_limit() == 64
