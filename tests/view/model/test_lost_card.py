"""A pod whose recorded card is missing on its node, in all views."""

from placement.cluster.holdings import Provenance
from tests.placement.cluster.builders import Json, hint, make_node, make_pod, record
from tests.view.model.test_state import explanation_of, node_in, pod_in, state_of
from view.model.reports import Part

ONE, TWO, MISSING = "GPU-n1-0", "GPU-n1-1", "GPU-gone-0"


def lost(name: str = "lost", cards: tuple[str, ...] = (MISSING,), cores: int = 50) -> Json:
    return make_pod(
        name,
        (cores, 8),
        node="n1",
        annotations=record(c0=(cards, cores, 8)) | hint("0"),
        phase="Running",
    )


def test_a_lost_card_is_shown_in_all_views() -> None:
    state = state_of([make_node("n1", 2)], [lost()])
    report = state.report()
    assert [card.holders for card in node_in(report, "n1").cards] == [(), ()]
    (container,) = pod_in(report, "lost").containers
    assert container.parts == (Part(MISSING, None, "", 50, 8, lost=True),)
    assert container.source is Provenance.RECORDED
    text = "container c0 holds a missing card (GPU-gone-0)"
    assert pod_in(report, "lost").why == text
    note = "pod default/lost holds a missing card (GPU-gone-0)"
    assert note in node_in(report, "n1").notes
    explanation = explanation_of(state, "lost")
    assert explanation.summary == f"runs on n1; {text}"
    allocated = next(each for each in explanation.steps if each.name == "allocated")
    assert allocated.state == "wrong"
    assert allocated.text == (
        "c0: 50 cores and 8 blocks of a missing card (GPU-gone-0), reported by the "
        "agent, evidence witness: no other container matched the call"
    )


def test_one_of_two_cards_may_be_lost() -> None:
    state = state_of([make_node("n1", 2)], [lost(cards=(MISSING, TWO), cores=200)])
    report = state.report()
    one, two = node_in(report, "n1").cards
    assert (one.holders, two.cores_held) == ((), 100)
    (container,) = pod_in(report, "lost").containers
    assert [(each.uuid, each.lost) for each in container.parts] == [(TWO, False), (MISSING, True)]
    assert (
        explanation_of(state, "lost")
        .steps[3]
        .text.startswith("c0: 200 cores and 8 blocks of card 1 and a missing card (GPU-gone-0), ")
    )


def test_another_pod_fits_beside_it_and_its_deletion_is_not_suggested() -> None:
    node = make_node("n1", 1)
    state = state_of([node], [lost(), make_pod("new", (60, 4))])
    assert [each.fits for each in explanation_of(state, "new").nodes] == [True]
    state = state_of([node], [lost(), lost("held", (ONE,), 60), make_pod("new", (60, 4))])
    assert [
        each.text for each in explanation_of(state, "new").changes if each.kind == "delete-pods"
    ] == ["delete pod default/held on card 0 of n1 (frees 60 cores, 8 blocks)"]


def test_a_chosen_card_that_the_node_lacks_is_not_shown_as_chosen() -> None:
    """The agent will place the pod; it shows where it is expected."""
    pod = make_pod("early", (50, 8), node="n1", annotations=hint("7"))
    (container,) = pod_in(state_of([make_node("n1", 2)], [pod]).report(), "early").containers
    assert container.source is Provenance.EXPECTED
    assert [each.index for each in container.parts] == [0]


def test_an_ended_pod_has_no_lost_card() -> None:
    pod = lost() | {"status": {"phase": "Succeeded"}}
    (container,) = pod_in(state_of([make_node("n1", 2)], [pod]).report(), "lost").containers
    assert container.parts == (Part(MISSING, None, "", 50, 8),)
