"""Gauges of what containers hold of cards."""

from agent.allocator.holdings import CardRoom, HeldShare, Holder, Holdings
from agent.allocator.model.ledger import ContainerRef
from agent.observability.metrics import Metrics
from agent.observability.series import card_series
from tests.agent.builders import pod_id


def holder(name: str, cores: int, memory: int, *, uid: str | None = None) -> Holder:
    ref = ContainerRef(pod_id(name, uid), "main")
    return Holder(ref, ref.pod.uid, {"GPU-0": HeldShare(cores, memory)})


def shown(metrics: Metrics) -> set[str]:
    """The series of cards and containers, without their prefix."""
    lines = metrics.render().decode().splitlines()
    prefix = "gpu_turnstile_agent_"
    found = {each.removeprefix(prefix) for each in lines if each.startswith(prefix)}
    return {each for each in found if each.startswith(("card_cores", "card_memory", "container_"))}


HELD = Holdings(
    (holder("a", 30, 8, uid="1"), holder("a", 10, 2, uid="2"), holder('b"\n', 5, 1)),
    {"GPU-0": CardRoom(45, 55, 11, 21)},
)


def test_what_is_held_is_told_and_gone_with_its_holder() -> None:
    metrics, held = Metrics(), [HELD]
    assert shown(metrics) == set()
    metrics.read_series = lambda: card_series(held[0])
    hostile = 'card="GPU-0",container="main",namespace="default",pod="b\\"\\n"'
    of_a = 'card="GPU-0",container="main",namespace="default",pod="a"'
    of_cards = {
        'card_cores_held{card="GPU-0"} 45.0',
        'card_cores_free{card="GPU-0"} 55.0',
        'card_memory_held_bytes{card="GPU-0"} 11.0',
        'card_memory_free_bytes{card="GPU-0"} 21.0',
    }
    # Of two pods of one name, one of which is ending, both hold it.
    assert shown(metrics) == of_cards | {
        f"container_cores_held{{{of_a}}} 40.0",
        f"container_memory_held_bytes{{{of_a}}} 10.0",
        f"container_cores_held{{{hostile}}} 5.0",
        f"container_memory_held_bytes{{{hostile}}} 1.0",
    }
    held[0] = Holdings((), HELD.cards)
    assert shown(metrics) == of_cards
