"""The board of the cards' health, and who waits at it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from agent.cards.health_feed import HealthBoard, Showing


def test_at_first_every_card_is_healthy() -> None:
    assert HealthBoard().showing == Showing(0, frozenset())


def test_every_change_is_an_edition_and_the_same_again_is_none() -> None:
    board = HealthBoard()
    board.turn("GPU-0", healthy=True)
    assert board.showing == Showing(0, frozenset())
    board.turn("GPU-0", healthy=False)
    board.turn("GPU-0", healthy=False)
    assert board.showing == Showing(1, frozenset({"GPU-0"}))
    board.turn("GPU-1", healthy=False)
    board.turn("GPU-0", healthy=True)
    assert board.showing == Showing(3, frozenset({"GPU-1"}))


def test_what_has_changed_already_is_not_waited_for() -> None:
    board = HealthBoard()
    board.turn("GPU-0", healthy=False)
    board.turn("GPU-1", healthy=False)
    assert board.after(0, leave=lambda: False) == Showing(2, frozenset({"GPU-0", "GPU-1"}))


def test_everyone_who_waits_is_told_of_a_change() -> None:
    board = HealthBoard()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(board.after, 0, leave=lambda: False) for _ in range(3)]
        board.turn("GPU-0", healthy=False)
        assert {each.result(20) for each in waiting} == {Showing(1, frozenset({"GPU-0"}))}


def test_who_is_woken_may_leave_and_else_goes_on_waiting() -> None:
    board, leaving, asked = HealthBoard(), threading.Event(), threading.Semaphore(0)

    def leave() -> bool:
        asked.release()
        return leaving.is_set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(board.after, 0, leave=leave)
        assert asked.acquire(timeout=20)
        board.wake()
        assert asked.acquire(timeout=20)
        assert not waiting.done()
        leaving.set()
        board.wake()
        assert waiting.result(20) is None
