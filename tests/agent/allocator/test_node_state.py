"""What an agent knows of its node, and what it saves for the next one."""

import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator import snapshot
from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.identity import _MOST_DEPARTED
from agent.allocator.interfaces import Checkpoint, ListedPod
from agent.allocator.node_state import NodeState
from agent.allocator.resolver import LastCall
from agent.allocator.saved_state import Encoder, SavedState, decode
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId
from tests.agent.builders import CORE, MEMORY, ids, listed, patient, pod_id, view
from tests.in_memory.node import Store

POD = view("p")
MANY = 300


def _observe(number: int) -> tuple[Checkpoint, list[ListedPod]]:
    held = {CORE: ids("GPU-0", [number])}
    return Checkpoint({"u-p": {"c0": held}}), [listed("p", c0=held)]


def _state() -> NodeState:
    state = NodeState(Store())
    state.set_pods([POD], synced=True)
    return state


def test_every_observation_is_shown_though_object_addresses_are_reused() -> None:
    state = _state()
    for number in range(MANY):
        state.apply_observation(*_observe(number), caught_up=True)
        assert state.snapshot.held[CORE] == ids("GPU-0", [number])
        state.apply_observation(None, None)  # frees the objects of this observation
        gc.collect(0)


def test_equal_sources_make_no_other_snapshot() -> None:
    state = _state()
    state.apply_observation(*_observe(1), caught_up=True)
    state.apply_observation(*_observe(1), caught_up=True)
    before = state.snapshot
    state.set_pods([POD], synced=True)
    state.apply_observation(*_observe(1), caught_up=True)
    assert state.snapshot is before


def _observe_pods(state: NodeState, numbers: range) -> None:
    for number in numbers:
        name, held = f"p-{number}", {CORE: ids("GPU-0", [number % 100])}
        checkpoint = Checkpoint({f"u-{name}": {"c0": held}})
        state.set_pods([view(name)], synced=True)
        state.apply_observation(checkpoint, [listed(name, c0=held)], caught_up=True)


def test_ended_pods_are_forgotten_so_that_memory_does_not_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kubelet runs for months, and each pod has another UID."""
    monkeypatch.setattr(snapshot, "MOST_GONE", 100)
    state, sizes = _state(), []
    for begin in range(0, 1500, 300):
        _observe_pods(state, range(begin, begin + 300))
        sizes.append(state._history.size)
    assert max(sizes) < _MOST_DEPARTED + 3 * 100
    assert f"u-p-{MANY * 5 - 1}" in state._history.listed


def test_a_pod_is_remembered_as_long_as_a_source_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ``List`` has shown, and shows no more, has ended, however long its entry stays."""
    monkeypatch.setattr(snapshot, "MOST_GONE", 10)
    state, stays = _state(), {"u-stays": {"c0": {CORE: ids("GPU-1", [0])}}}
    state.apply_observation(Checkpoint(stays), [listed("stays", c0=stays["u-stays"]["c0"])])
    for number in range(MANY):
        name = f"p-{number}"
        held = {CORE: ids("GPU-0", [number % 100])}
        checkpoint = Checkpoint({**stays, f"u-{name}": {"c0": held}})
        state.set_pods([view(name)], synced=True)
        state.apply_observation(checkpoint, [listed(name, c0=held)], caught_up=True)
    assert "u-stays" in state._history.listed
    assert state.snapshot.held[CORE] == held[CORE]


# --- the saved state ------------------------------------------------------------------

_texts = st.sampled_from(["", "a", "c0", "\n", '"', "\u00e9", "\ud800", "\0"])
_pods = st.builds(PodId, _texts, _texts, _texts)
_assignments = st.builds(
    Assignment,
    container=_texts,
    resource=st.sampled_from(Resource),
    ids=st.frozensets(_texts, max_size=3),
    evidence=st.sampled_from(Evidence),
    allocated=st.booleans(),
)
_current_pods = st.builds(
    CurrentPod,
    id=_pods,
    uid=_texts,
    confirmed=st.booleans(),
    assignments=st.lists(_assignments, max_size=3).map(tuple),
)
_listed = st.none() | st.dictionaries(_texts, st.integers(0, 3), max_size=3)


def _last_calls(before: st.SearchStrategy[LastCall | None]) -> st.SearchStrategy[LastCall]:
    return st.builds(
        LastCall,
        pod=st.none() | _pods,
        signatures=_listed,
        guessed=st.booleans(),
        finished=st.frozensets(_pods, max_size=3),
        ruled_out=st.frozensets(_pods, max_size=3),
        fallback=before,
        at_wrong_guess=_listed,
    )


@patient
@given(
    st.builds(
        SavedState,
        st.none() | _texts,
        st.none() | _current_pods,
        _last_calls(st.none() | _last_calls(st.none())),
        st.frozensets(_texts, max_size=2),
        st.frozensets(_texts, max_size=2),
    )
)
def test_a_saved_state_is_read_as_it_was_written(state: SavedState) -> None:
    assert decode(Encoder().encode(state)) == state


CURRENT = CurrentPod(
    pod_id("p"),
    "u-p",
    confirmed=True,
    assignments=(
        Assignment("c0", CORE, ids("GPU-0", range(2)), Evidence.WITNESS, allocated=True),
        Assignment("c0", MEMORY, ids("GPU-0", range(1)), Evidence.ORDER, allocated=False),
    ),
)
LAST_CALL = LastCall(
    pod_id("p"), {"default p c0": 1}, guessed=False, finished=frozenset({pod_id()})
)
TEXT = Encoder().encode(
    SavedState("1:2", CURRENT, LAST_CALL, frozenset({"u-a"}), frozenset({"u-b"}))
)


DAMAGES: list[Any] = [None, 0, "x", [], {}, [[]], [["a"]], {"a": 1}]


def _variants(value: Any) -> Iterator[Any]:
    """Yield *value* with one of its parts replaced, at any depth."""
    yield from DAMAGES
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: each} for each in _variants(inner))
            yield {other: value[other] for other in value if other != key}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], each, *value[index + 1 :]] for each in _variants(inner))


def test_a_file_of_another_form_is_read_or_ignored_without_an_error() -> None:
    for each in _variants(json.loads(TEXT)):
        found = decode(json.dumps(each))
        assert decode(Encoder().encode(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        '{"kubelet": null, "last_call": null, "current": null}',
        TEXT.replace('"witness"', '"hearsay"'),
        TEXT.replace('"core"', '"cpu"'),
        TEXT.replace('"kubelet"', '"kublet"'),
        TEXT.replace('"u-p"]', '"u-p", "more"]'),
        TEXT.replace('c0": 1', 'c0": 1e999'),
        "[" * 100_000,
        *(TEXT[:length] for length in range(0, len(TEXT), 7)),
    ],
)
def test_a_foreign_or_truncated_file_is_ignored(text: str) -> None:
    assert decode(text) == SavedState()
