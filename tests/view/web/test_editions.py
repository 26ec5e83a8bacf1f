"""Editions: a browser that applies the changes since its edition has the newest one."""

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


@given(moments=MOMENTS, requested=st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_browser_that_skips_editions_gets_the_current_state(
    moments: list[dict[str, int]], requested: list[bool]
) -> None:
    edition = EMPTY
    seen, have = 0, dict[str, NodeReport]()
    for moment, requests in zip(moments, requested, strict=False):
        edition = next_edition(edition, report(moment), first=5)
        if not requests:
            continue
        changed = edition.changed(seen)
        now = {each.name: each for each in edition.report.nodes}
        if changed is None:
            have = now
        else:  # in the order of the response; nodes that it lacks are deleted
            have = {name: each if name in changed else have[name] for name, each in now.items()}
        seen = edition.number
        assert have == {each.name: each for each in report(moment).nodes}


def test_an_equal_report_is_no_new_edition_and_an_equal_node_stays_the_same_object() -> None:
    first = next_edition(EMPTY, report({"a": 0, "b": 0}))
    assert next_edition(first, report({"a": 0, "b": 0})) is first
    second = next_edition(first, report({"a": 0, "b": 1}))
    assert (first.number, second.number) == (1, 2)
    assert second.report.nodes[0] is first.report.nodes[0]
