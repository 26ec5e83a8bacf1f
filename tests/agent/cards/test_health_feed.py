"""The feed of the cards' health, and who waits at it."""

import threading
from concurrent.futures import ThreadPoolExecutor

from agent.cards.health_feed import HealthFeed, HealthSnapshot


def test_every_change_is_an_edition_and_the_same_again_is_none() -> None:
    health_feed = HealthFeed()
    health_feed.turn("GPU-0", healthy=True)  # at first every card is
    assert health_feed.showing == HealthSnapshot(0, frozenset())
    health_feed.turn("GPU-0", healthy=False)
    health_feed.turn("GPU-0", healthy=False)
    assert health_feed.showing == HealthSnapshot(1, frozenset({"GPU-0"}))
    health_feed.turn("GPU-1", healthy=False)
    health_feed.turn("GPU-0", healthy=True)
    assert health_feed.showing == HealthSnapshot(3, frozenset({"GPU-1"}))
    assert health_feed.after(0, leave=lambda: False) == health_feed.showing


def test_everyone_who_waits_is_told_of_a_change() -> None:
    health_feed = HealthFeed()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(health_feed.after, 0, leave=lambda: False) for _ in range(3)]
        health_feed.turn("GPU-0", healthy=False)
        assert {each.result(20) for each in waiting} == {HealthSnapshot(1, frozenset({"GPU-0"}))}


def test_who_is_woken_may_leave_and_else_goes_on_waiting() -> None:
    health_feed, leaving, asked = HealthFeed(), threading.Event(), threading.Semaphore(0)

    def leave() -> bool:
        asked.release()
        return leaving.is_set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(health_feed.after, 0, leave=leave)
        assert asked.acquire(timeout=20)
        health_feed.wake()
        assert asked.acquire(timeout=20)
        assert not waiting.done()
        leaving.set()
        health_feed.wake()
        assert waiting.result(20) is None


def test_a_cordoned_card_stands_beside_ill_ones_and_comes_back_only_when_it_is_neither() -> None:
    health_feed = HealthFeed()
    health_feed.turn("GPU-0", healthy=False)
    health_feed.cordon(frozenset({"GPU-0", "GPU-1"}))
    assert health_feed.showing == HealthSnapshot(2, frozenset({"GPU-0", "GPU-1"}))
    health_feed.turn("GPU-0", healthy=True)
    assert health_feed.showing.version == 2
    health_feed.cordon(frozenset({"GPU-1"}))
    assert health_feed.showing.unhealthy == {"GPU-1"}
