"""Editions: a browser that has one and asks what changed ends up with the newest."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.placement.cluster.builders import NAMES, make_node
from view.model.reports import ClusterReport, NodeReport
from view.model.state import ClusterState
from view.web.editions import EMPTY, next_edition


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
def test_an_occasional_reader_gets_the_current_state(
    moments: list[dict[str, int]], asked: list[bool]
) -> None:
    edition = EMPTY
    seen, have = 0, dict[str, NodeReport]()
    for moment, asks in zip(moments, asked, strict=False):
        edition = next_edition(edition, report(moment), first=5)
        if not asks:
            continue
        changed = edition.changed(seen)
        now = {each.name: each for each in edition.report.nodes}
        if changed is None:
            have = now
        else:  # in the order that is told with it; what is not in it has gone
            have = {name: each if name in changed else have[name] for name, each in now.items()}
        seen = edition.number
        assert have == {each.name: each for each in report(moment).nodes}


def test_an_equal_report_is_no_new_edition_and_an_equal_node_stays_the_same_object() -> None:
    first = next_edition(EMPTY, report({"a": 0, "b": 0}))
    assert next_edition(first, report({"a": 0, "b": 0})) is first
    second = next_edition(first, report({"a": 0, "b": 1}))
    assert (first.number, second.number) == (1, 2)
    assert second.report.nodes[0] is first.report.nodes[0]
