"""Editions: a browser that has one and asks what changed ends up with the newest."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.placement.cluster.builders import NAMES, make_node, make_pod, record
from view.model.reports import ClusterReport, NodeReport
from view.model.state import ClusterState
from view.web import editions
from view.web.editions import EMPTY, Edition, next_edition
from view.web.filters import Filter
from view.web.pages import changes, nodes_page


def nodes(*names: str) -> dict[str, NodeReport]:
    state = ClusterState(NAMES)
    for name in names:
        state.put_node(make_node(name, 1))
    return {each.name: each for each in state.report().nodes}


KNOWN = nodes(*"abcd")
MOMENTS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), min_size=1, max_size=8
)


def report(moment: dict[str, int]) -> ClusterReport:
    return ClusterReport(
        tuple(replace(KNOWN[name], pods=pods) for name, pods in sorted(moment.items())), (), (), ()
    )


@given(moments=MOMENTS, asked=st.lists(st.booleans(), min_size=8, max_size=8))
def test_who_asks_now_and_then_has_what_is_there_now(
    moments: list[dict[str, int]], asked: list[bool]
) -> None:
    edition = EMPTY
    seen, have = 0, dict[str, NodeReport]()
    for moment, asks in zip(moments, asked, strict=False):
        edition = next_edition(edition, report(moment), first=5)
        if not asks:
            continue
        delta = changes(nodes_page(edition, Filter()), seen)
        if delta is None:
            have = {each.name: each for each in edition.report.nodes}
        else:
            have |= {each.name: each for each in delta.changed}
            for name in delta.gone:
                have.pop(name, None)
        seen = edition.number
        assert have == {each.name: each for each in report(moment).nodes}


def test_an_equal_report_is_no_new_edition_and_an_equal_node_stays_the_same_object() -> None:
    first = next_edition(EMPTY, report({"a": 0, "b": 0}))
    assert next_edition(first, report({"a": 0, "b": 0})) is first
    second = next_edition(first, report({"a": 0, "b": 1}))
    assert (first.number, second.number) == (1, 2)
    assert second.report.nodes[0] is first.report.nodes[0]


def test_only_what_is_remembered_can_be_asked_for() -> None:
    edition = next_edition(EMPTY, report({"a": 0}), first=100)
    assert edition.delta(99) is None  # of another process
    assert edition.delta(101) is None
    assert edition.delta(100) == ((), ())


def test_too_many_that_have_gone_are_forgotten_together() -> None:
    gone = {str(number): 1 for number in range(editions._MOST_GONE)}
    before = Edition(7, report({"a": 0}), {"a": 1}, gone, 1)
    after = next_edition(before, report({}))
    assert after.gone == {}
    assert after.delta(7) is None
    assert after.delta(8) == ((), ())


def test_a_node_that_a_filter_keeps_no_longer_has_gone_for_who_filters() -> None:
    state = ClusterState(NAMES)
    state.put_node(make_node("n1", 1))
    pod = make_pod("p", (10, 1), node="n1", annotations=record(c0=(["GPU-n1-0"], 10, 1)))
    state.put_pod(pod)
    first = next_edition(EMPTY, state.report())
    chosen = Filter(namespace="default")
    assert [each.name for each in nodes_page(first, chosen).shown] == ["n1"]
    state.drop_pod("u-p")
    page = nodes_page(next_edition(first, state.report()), chosen)
    assert changes(page, first.number) == ((), ("n1",))
