"""The adversary finds no error of the agent, and finds the errors that these tests inject."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

import pytest

from agent.allocator import resolver
from agent.allocator.allocator import Allocator
from agent.allocator.resolver import LastCall
from agent.errors import PlacementError
from contract.allocation import Evidence
from contract.resource import Resource
from simulator.kubelet.devices import PreferStep
from tests.adversary.judge import Call
from tests.adversary.moves import FAULTS
from tests.adversary.oracle import could_run
from tests.adversary.run import FORMS, Outcome, run
from tests.adversary.world import World
from tests.in_memory.pods import gpu, init, make_pod

resolve, prefer = resolver.resolve, Allocator.prefer

SEEDS = range(14, 18)
"""Chosen seeds: none meets a known limit (docs/kubelet-facts.md, K8, old form of ``List``)."""


@pytest.mark.parametrize("form", FORMS)
def test_random_events_cause_no_finding(form: str) -> None:
    """`python -m tests.adversary` runs more nodes."""
    total = Outcome()
    for seed in SEEDS:
        total += run(seed, active_only=FORMS[form], rounds=80)
    assert total.findings == ()
    (other,) = FORMS.keys() - {form}
    assert [each for each in FAULTS if not total.faults[each] and other not in each] == []


def refuse(*_args: object) -> NoReturn:
    raise PlacementError("no card fits")


def fail(*_args: object) -> NoReturn:
    raise RuntimeError("failed")


def first_devices(
    agent: Allocator, resource: Resource, available: list[str], must: list[str], size: int
) -> list[str]:
    prefer(agent, resource, available, must, size)
    return [*must, *(each for each in available if each not in must)][:size]


def without_last_call(
    request: resolver.TargetRequest, snapshot: Any, _last_call: object, **options: Any
) -> Any:
    return resolve(request, replace(snapshot, listing=False), LastCall(), **options)


def as_witness(*args: Any, **options: Any) -> Any:
    return replace(resolve(*args, **options), evidence=Evidence.WITNESS)


SABOTAGE: dict[str, tuple[str, Callable[..., Any]]] = {
    "refused": ("agent.allocator.allocator.Allocator.prefer", refuse),
    "failed": ("agent.allocator.allocator.Allocator.allocate", fail),
    "veto": ("agent.allocator.allocator.Allocator.prestart", refuse),
    "split": ("agent.allocator.allocator.Allocator.prefer", first_devices),
    "unknown": ("agent.allocator.allocator.Allocator.entitled", lambda *_: None),
    "free": (
        "agent.allocator.allocator.Allocator.free",
        lambda *_: {f"GPU-{index}": 0 for index in range(4)},
    ),
    "record": ("simulator.node.api.InMemoryApi.put", lambda *_: None),
    "wrong": ("agent.allocator.calls.resolve", without_last_call),
    "witness": ("agent.allocator.calls.resolve", as_witness),
}


@pytest.mark.parametrize("kind", SABOTAGE)
def test_every_defect_of_an_agent_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*SABOTAGE[kind])
    active_only = kind not in ("wrong", "witness")
    assert kind in {each.kind for each in run(3, active_only=active_only, rounds=20).findings}


def test_devices_of_an_init_container_restrict_later_containers() -> None:
    """K7: the second has to take what is left of its cores, and GPU-0 has too little memory."""
    world = World(Random(0), active_only=True)
    full = make_pod("full", gpu(10, 12))
    pod = make_pod("a", init(20, 2), gpu(10, 2, "first"), gpu(10, 4, "second"))
    for each, container, resource, count in (
        (full, "main", Resource.MEMORY, 12),
        (pod, "init", Resource.CORE, 20),
    ):
        ids = sorted(world.table.by_card(resource)["GPU-0"])[:count]
        world.kubelet.know(each)
        world.kubelet.hold(each, container, {resource: ids})
    first = pod.containers[0]
    offered = tuple(world.kubelet.free(Resource.MEMORY))
    offer = PreferStep(first.as_asked, Resource.MEMORY, offered, (), 2)
    assert not could_run(world, Call(pod, first, Resource.MEMORY), offer)
