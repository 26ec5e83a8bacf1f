"""The snapshot is built again if a source has changed, and only then."""

import gc

from agent.allocator.interfaces import Checkpoint, ListedPod
from agent.allocator.node_state import NodeState
from tests.agent.builders import CORE, ids, listed, view
from tests.in_memory.node import Store

POD = view("p")
MANY = 300


def _observe(number: int) -> tuple[Checkpoint, list[ListedPod]]:
    """Return new objects of checkpoint and ``List``, in which the pod holds one slot."""
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


def test_a_changed_pod_in_the_api_makes_another_snapshot() -> None:
    state = _state()
    state.apply_observation(*_observe(1), caught_up=True)
    assert not state.snapshot.pods[0].ended
    state.set_pods([view("p", terminal=True)], synced=True)
    state.apply_observation(*_observe(1), caught_up=True)
    found = state.snapshot.pod(POD.id)
    assert found is not None
    assert found.info is not None
    assert found.info.terminal
