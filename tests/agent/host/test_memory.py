"""The process is kept small where the C library lets it."""

import ctypes
import gc
from collections.abc import Iterator

import pytest

from agent.host import memory


class Library:
    """A C library whose ``mallopt`` notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []

    def mallopt(self, option: int, value: int) -> int:
        self.told.append((option, value))
        return 1


def test_all_threads_share_two_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    memory.limit_arenas()
    assert library.told == [(-8, 2)]


@pytest.mark.parametrize("error", [OSError("no library"), AttributeError("mallopt")])
def test_where_the_library_knows_no_arenas_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(_name: object) -> object:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    memory.limit_arenas()


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed")
def test_what_is_there_is_left_out_of_the_collections_to_come() -> None:
    before = gc.get_freeze_count()
    memory.freeze()
    assert gc.get_freeze_count() > before
