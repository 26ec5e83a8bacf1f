"""The process is kept small where the C library lets it."""

import ctypes
import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from agent.host import memory


def test_all_threads_share_two_arenas_where_the_library_knows_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *option: told.append(option))
    for each in (library, SimpleNamespace()):
        monkeypatch.setattr(ctypes, "CDLL", lambda _name, each=each: each)
        memory.limit_arenas()
    assert told == [(-8, 2)]


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_is_there_is_left_out_of_the_collections_to_come() -> None:
    before = gc.get_freeze_count()
    memory.freeze()
    assert gc.get_freeze_count() > before
