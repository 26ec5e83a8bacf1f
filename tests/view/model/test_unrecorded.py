"""A running pod without recorded cards: every view shows that its cards are an estimate."""

from tests.placement.cluster.builders import Json, hint, make_node, make_pod, record
from tests.view.model.test_state import explanation_of, node_in, pod_in, state_of

TEXT = "not recorded by the agent: the cards shown are an estimate"


def unrecorded(name: str = "dark", phase: str = "Running", **annotations: str) -> Json:
    return make_pod(name, (50, 8), node="n1", annotations=annotations, phase=phase)


def test_node_pod_and_explanation_show_that_the_card_is_an_estimate() -> None:
    recorded = make_pod(
        "known", (50, 8), node="n1", annotations=record(c0=(("GPU-n1-1",), 50, 8)), phase="Running"
    )
    state = state_of([make_node("n1", 2)], [unrecorded(), recorded])
    report = state.report()
    assert f"1 running pod (default/dark) {TEXT}" in node_in(report, "n1").notes
    assert pod_in(report, "dark").why == f"container c0 is {TEXT}"
    assert pod_in(report, "known").why == ""
    explanation = explanation_of(state, "dark")
    assert explanation.summary == f"runs on n1; container c0 is {TEXT}"
    allocated = next(each for each in explanation.steps if each.name == "allocated")
    assert (allocated.state, allocated.text) == ("wrong", "not reported by the agent")


def test_a_schedulers_choice_is_an_estimate_too() -> None:
    """The agent takes another card if the chosen one does not fit."""
    state = state_of([make_node("n1", 2)], [unrecorded(**hint("0"))])
    assert f"1 running pod (default/dark) {TEXT}" in node_in(state.report(), "n1").notes


def test_a_starting_pod_is_not_shown_as_unrecorded() -> None:
    state = state_of([make_node("n1", 2)], [unrecorded(phase="Pending")])
    report = state.report()
    assert not [each for each in node_in(report, "n1").notes if TEXT in each]
    assert pod_in(report, "dark").why == ""
