"""The adversary: it finds nothing of the agent, and finds what is done to the agent here."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from agent.allocator import resolver
from agent.allocator.allocator import Allocator
from agent.allocator.resolver import LastCall
from agent.errors import PlacementError
from bench.adversary.run import run
from contract.allocation import Evidence
from contract.resource import Resource

resolve, prefer = resolver.resolve, Allocator.prefer


@pytest.mark.parametrize(
    ("seed", "active_only", "rounds"),
    [
        (3, True, 25),
        (9, False, 25),
        (13, True, 25),
        # `List` goes away, and a pod hands on what a rejected one had.
        (405, False, 5),
        (1032, True, 20),
        (1055, True, 8),
        # The checkpoint disproves a guess in mid-admission.
        (1010, False, 65),
    ],
)
def test_nothing_is_found_of_the_agent(seed: int, *, active_only: bool, rounds: int) -> None:
    """`make bench BENCH=soak` looks at more."""
    assert run(seed, active_only=active_only, rounds=rounds).findings == ()


def refuse(*_args: object) -> NoReturn:
    raise PlacementError("no card fits")


def fail(*_args: object) -> NoReturn:
    raise RuntimeError("failed")


def first_places(
    agent: Allocator, resource: Resource, available: list[str], must: list[str], size: int
) -> list[str]:
    prefer(agent, resource, available, must, size)
    return [*must, *(each for each in available if each not in must)][:size]


def by_no_turn(request: resolver.Request, record: Any, _turn: object, **options: Any) -> Any:
    return resolve(request, replace(record, listing=False), LastCall(), **options)


def as_witness(*args: Any, **options: Any) -> Any:
    return replace(resolve(*args, **options), evidence=Evidence.WITNESS)


SABOTAGE: dict[str, tuple[str, Callable[..., Any]]] = {
    "refused": ("agent.allocator.allocator.Allocator.prefer", refuse),
    "failed": ("agent.allocator.allocator.Allocator.allocate", fail),
    "veto": ("agent.allocator.allocator.Allocator.prestart", refuse),
    "split": ("agent.allocator.allocator.Allocator.prefer", first_places),
    "unknown": ("agent.allocator.allocator.Allocator.entitled", lambda *_: None),
    "free": (
        "agent.allocator.allocator.Allocator.free",
        lambda *_: {f"GPU-{index}": 0 for index in range(4)},
    ),
    "record": ("bench.adversary.api.Api.put", lambda *_: None),
    "wrong": ("agent.allocator.calls.resolve", by_no_turn),
    "witness": ("agent.allocator.calls.resolve", as_witness),
}


@pytest.mark.parametrize("kind", SABOTAGE)
def test_what_is_wrong_with_an_agent_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*SABOTAGE[kind])
    active_only = kind not in ("wrong", "witness")
    assert kind in {each.kind for each in run(1, active_only=active_only, rounds=8).findings}
