"""Gauges of the holdings of containers."""

from dataclasses import replace

from agent.cards.card_use import CardUse
from agent.holdings.holding import ContainerRef, Holding, NodeHoldings, are_whole, make_key
from agent.observability.metrics import Metrics
from agent.observability.series import card_series, gpu_manager_series
from agent.usage.join import MeasuredUse, NodeMeasurement
from contract.inventory import Amounts
from tests.agent.builders import card, pod_id


def holder(name: str, cores: int, memory: int, *, uid: str | None = None) -> Holding:
    ref = ContainerRef(pod_id(name, uid), "main")
    cards = {"GPU-0": Amounts(cores, memory)}
    return Holding(ref, make_key(name), cards, are_whole(cards), runtime_uid=ref.pod.uid)


def shown(metrics: Metrics) -> set[str]:
    lines = metrics.render().decode().splitlines()
    prefix = "gpu_turnstile_agent_"
    found = {each.removeprefix(prefix) for each in lines if each.startswith(prefix)}
    return {each for each in found if each.startswith(("card_cores", "card_memory", "container_"))}


CARDS = tuple(replace(card(at), memory=32) for at in range(2))
HELD = NodeHoldings.of(
    (holder("a", 30, 8, uid="1"), holder("a", 10, 2, uid="2"), holder('b"\n', 5, 1)),
    CARDS[:1],
    block=1,
)


def test_held_amounts_are_exported_and_removed_with_their_holder() -> None:
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
    held[0] = replace(HELD, holders=())
    assert shown(metrics) == of_cards


def used(cores: int | None, memory: int | None) -> dict[str, MeasuredUse]:
    return {"GPU-0": MeasuredUse(cores, memory)}


def test_use_is_exported_for_existing_containers_without_values_the_driver_lacks() -> None:
    (a, _, b), metrics = HELD.holders, Metrics()
    ended = holder("ended", 1, 1).ref
    measured = NodeMeasurement(
        {"GPU-0": CardUse(70, None), "GPU-9": CardUse(1, 1)},
        {a.ref: used(0, None), b.ref: used(None, 7), ended: used(50, 50)},
    )
    metrics.read_series = lambda: card_series(HELD, measured)
    assert {each for each in shown(metrics) if "used" in each} == {
        'card_cores_used{card="GPU-0"} 70.0',
        'container_cores_used{card="GPU-0",container="main",namespace="default",pod="a"} 0.0',
        (
            'container_memory_used_bytes{card="GPU-0",container="main",namespace="default",'
            'pod="b\\"\\n"} 7.0'
        ),
    }


def test_a_sum_in_gpu_managers_gauges_is_exported_only_if_all_its_parts_are() -> None:
    mib = 1 << 20
    ref = holder("a", 0, 0).ref
    two = dict.fromkeys(("GPU-0", "GPU-1"), Amounts(100, 1))  # whole cards have all their memory
    cards = tuple(replace(each, memory=4 * mib) for each in CARDS)
    holdings = NodeHoldings.of([Holding(ref, make_key("a"), two, are_whole(two))], cards, block=1)
    measured = NodeMeasurement(
        {}, {ref: {"GPU-0": MeasuredUse(60, 3 * mib), "GPU-1": MeasuredUse(None, mib)}}
    )
    found = gpu_manager_series("n1", {"GPU-0": 0, "GPU-1": 1}, holdings, measured)
    of = ("a", "default", "n1", "main")
    assert {each.name: (each.labels[-1], dict(each.samples)) for each in found} == {
        "container_gpu_utilization": ("gpu", {(*of, "gpu0"): 60}),
        "container_gpu_memory_total": (
            "gpu_memory",
            {(*of, "gpu0"): 3, (*of, "gpu1"): 1, (*of, "total"): 4},
        ),
        "container_request_gpu_utilization": ("req_of_gpu", {(*of, "total"): 2}),
        "container_request_gpu_memory": ("req_of_gpu_memory", {(*of, "total"): 8}),
    }
