"""The page's summary, map of cards, figures and usage table, for a known cluster."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.cluster.holdings import Provenance
from tests.placement.cluster.builders import NAMES, bare_node, make_node, make_pod
from tests.view import scenes
from tests.view.model.test_state import state_of
from tests.view.web.conftest import put
from tests.view.web.sample import cluster
from view.model.reports import CardReport, Holder
from view.model.state import ClusterState
from view.model.usage_history import GroupBy, History, UsageRow
from view.web import card_map, figures, pages
from view.web.editions import EMPTY, next_edition
from view.web.figures import COLORS, tenants
from view.web.filters import CardFilter, Filter, MapColor, MapGrouping, NodeOrder
from view.web.links import Dashboard
from view.web.pages import NodesPage
from view.web.usage_table import UsageOrder, UsageSelection, as_csv, in_order


def page_of(chosen: Filter = Filter(), *more: dict[str, object]) -> NodesPage:  # noqa: B008 -- frozen
    state = state_of([])
    put(state, (*cluster(), *more))
    return NodesPage(next_edition(EMPTY, state.report()), chosen)


def test_the_summary_shows_problems_free_cards_and_pending_pods() -> None:
    page = page_of()
    assert [each.text.partition(":")[0] for each in page.problems.lines] == [
        "1 node",
        "1 card unhealthy",
        "vision/augment-xl refused",
    ]
    assert (page.problems.number, page.problems.more) == (4, 1)
    assert page.free.number == 1
    assert page.free.lines[0].text == (
        "NVIDIA A100-SXM4-80GB: 1 whole, 4 more with free cores; up to 100 cores on one card"
    )
    assert page.free.lines[0].query == "model=NVIDIA+A100-SXM4-80GB&show=room"
    assert page.pending.number == 1
    assert page.pending.lines[0].text.startswith("llm/pretrain-13b: fewer than 2 cards")


def test_a_cordoned_card_is_no_problem_and_not_free() -> None:
    before, page = page_of(), page_of(Filter(), make_node("spare", 1, cordoned=[0]))
    assert page.problems == before.problems
    assert page.free.number == before.free.number
    assert (page.total.cordoned, page.total.unhealthy) == (1, before.total.unhealthy)
    assert (page.total.cores, page.total.cards) == (before.total.cores, before.total.cards + 1)


def test_a_free_mig_instance_is_no_whole_card() -> None:
    node = make_node("mig", 1, blocks=19, models=["NVIDIA A100-SXM4-40GB MIG 1g.5gb"])
    annotations = node["metadata"]["annotations"]
    annotations[NAMES.gpu_cards] = annotations[NAMES.gpu_cards].replace("GPU-mig-0", "MIG-mig-0")
    page = page_of(Filter(), node)
    assert page.free.number == page_of().free.number
    assert "NVIDIA A100-SXM4-40GB MIG 1g.5gb: 0 whole, 1 more with free cores; up to 100" in str(
        page.free.lines
    )


def test_equal_pending_pods_are_one_line_with_the_oldest_first() -> None:
    pods = []
    for number in range(150):
        pod = scenes.waiting(f"train-{number}", (100, 0))
        pods.append(scenes.owned(pod, "Job", "train", f"2025-11-22T08:{number % 60:02}:00Z"))
    page = page_of(Filter(), *pods)
    assert (page.pending.number, len(page.pending.lines)) == (151, 2)
    job = next(group for group in page.attention if len(group.pods) == 150)
    assert job.name == "Job default/train: 150 pods"
    assert job.pods[0].created == "2025-11-22T08:00:00Z"
    assert (page.attention_count, page.attention_shown) == (153, 153)
    every = page_of(Filter(every=True), *pods)
    assert all(len(group.pods) == 1 for group in every.attention)


@pytest.mark.parametrize(
    ("chosen", "nodes", "cards"),
    [
        (Filter(), 4, 12),
        (Filter(namespace="llm"), 2, 3),
        (Filter(namespace="llm", show=CardFilter.ROOM), 0, 0),
        (Filter(search="NOTEBOOK-a"), 1, 1),
        (Filter(search="GPU-l40s-1-1"), 1, 1),
        (Filter(node="l40s-1"), 1, 2),
        (Filter(node="l40s"), 0, 0),
        (Filter(show=CardFilter.WRONG), 2, 3),
        (Filter(show=CardFilter.WHOLE), 1, 1),
        (Filter(show=CardFilter.ROOM), 3, 6),
        (Filter(show=CardFilter.IDLE), 0, 0),
    ],
)
def test_a_filter_counts_its_cards(chosen: Filter, nodes: int, cards: int) -> None:
    page = page_of(chosen)
    assert (page.total.nodes, page.total.cards, page.all_cards) == (nodes, cards, 12)
    assert len(page.selected) == cards


def test_a_node_without_cards_is_selected_only_by_its_name() -> None:
    bare = bare_node("bare", "{}")
    found = {name: page_of(Filter(node=name), bare).total.nodes for name in ("", "bare", "l40s-1")}
    assert found == {"": 5, "bare": 1, "l40s-1": 1}


def test_the_card_filter_does_not_change_the_summary() -> None:
    everything, wrong = page_of(), page_of(Filter(show=CardFilter.WRONG))
    numbers = [(each.problems.number, each.free.number) for each in (everything, wrong)]
    assert numbers[0] == numbers[1]


def test_nodes_are_sorted() -> None:
    for sort in (NodeOrder.NAME, NodeOrder.FREE, NodeOrder.HELD):
        names = [each.name for each in page_of(Filter(sort=sort)).shown]
        first = "a100-2" if sort is NodeOrder.FREE else "a100-1"
        assert (names[0], names[-1]) == (first, "l40s-2")


def test_a_filter_is_written_as_it_is_read() -> None:
    orders = (CardFilter.IDLE, NodeOrder.IDLE, MapColor.USE, MapGrouping.POOL)
    chosen = Filter("a", "b", "c", "d", *orders, every=True)
    written = dict(each.split("=") for each in chosen.query(start=7).split("&"))
    assert Filter.parse(written) == replace(chosen, start=7)
    assert replace(chosen, start=7).query() == chosen.query(), "from the first node on"
    assert len(Filter.parse({"search": "x" * 999}).search) == 253
    assert Filter.parse({"show": "x", "sort": "x", "paint": "x", "group": "x"}) == Filter()


@pytest.mark.parametrize(
    ("paint", "fields", "kind", "text"),
    [
        (MapColor.CORES, {"cores_held": 0}, "", "0 %"),
        (MapColor.CORES, {"cores_held": 1}, "h1", "1 %"),
        (MapColor.CORES, {"cores_held": 40}, "h2", "40 %"),
        (MapColor.CORES, {"cores_held": 99}, "h3", "99 %"),
        (MapColor.CORES, {"cores_held": 100}, "h4", "100 %"),
        (MapColor.MEMORY, {"blocks_held": 16}, "h2", "50 %"),
        (MapColor.USE, {"cores_used": None}, "unknown", "unknown"),
        (MapColor.USE, {"cores_used": 70}, "h3", "70 %"),
        (MapColor.CORES, {"unhealthy": "Xid 79"}, "wrong", "problem"),
        (MapColor.CORES, {"cordoned": True}, "cordoned", "cordoned"),
        (MapColor.CORES, {"overbooked": True}, "wrong", "problem"),
    ],
)
def test_a_card_is_filled_by_its_held_part(
    paint: MapColor, fields: dict[str, Any], kind: str, text: str
) -> None:
    (node,) = state_of([make_node("n1", 1)]).report().nodes
    card = replace(node.cards[0], **fields)
    drawn = card_map.picture(node, (card,), {card.uuid}, paint)
    assert [each for each, _ in drawn.fills] == [kind] * bool(kind)
    assert drawn.text.endswith(text)
    assert card_map.picture(node, (card,), (), paint).fills == ()


def test_the_map_is_divided_by_pool_and_model() -> None:
    pool = make_node("p1", 1)
    pool["metadata"]["labels"] = {"karpenter.sh/nodepool": "spot"}
    divided = page_of(Filter(group=MapGrouping.POOL), pool).map
    assert [(each.name, len(each.nodes)) for each in divided] == [("spot", 1), ("No pool", 4)]
    assert divided[1].sums == "4 nodes, 12 cards, 1 whole card free, 3 with problems"
    models = page_of(Filter(group=MapGrouping.MODEL)).map
    assert [each.name for each in models] == ["NVIDIA A100-SXM4-80GB", "NVIDIA L40S"]


def test_many_models_end_in_one_division(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_map, "_MOST_GROUPS", 1)
    assert [each.name for each in page_of(Filter(group=MapGrouping.MODEL)).map] == ["Others"]


# --- usage ----------------------------------------------------------------------------


def test_the_table_is_sorted_and_is_csv_for_spreadsheets() -> None:
    usage = [
        UsageRow("b", "=cmd|/x", "", 1, None, 2, 3, 2, 1),
        UsageRow("a", "-1", "", 2, 1, 0, 1, 1, 0.75),
        UsageRow("c", "", "@p", 0.5),
    ]
    bac = {UsageOrder.IDLE, UsageOrder.HELD, UsageOrder.PENDING}
    for sort in UsageOrder:
        order = "".join(each.namespace for each in in_order(usage, sort))
        assert order == ("bac" if sort in bac else "abc")
    rows = list(csv.DictReader(io.StringIO(as_csv(in_order(usage, UsageOrder.NOW), History()))))
    assert [(each["owner"], each["pod"]) for each in rows] == [
        ("'-1", ""),
        ("'=cmd|/x", ""),
        ("", "'@p"),
    ]
    assert list(rows[2].values())[3:] == ["0.5", "", "0.0", "", "", "", "", "", "0"]
    choice = UsageSelection.parse({"by": "x", "sort": "y", "every": "2"})
    assert choice == UsageSelection()
    assert UsageSelection(GroupBy.POD, "llm").query(every=True).startswith("by=pod&namespace=llm")


INVALID_DASHBOARDS = {
    "ftp://x/{pod}": "'ftp://x/{pod}' must begin with http:// or https:// and a host",
    "javascript:alert(1)": "must begin with http:// or https:// and a host",
    "https://{pod}/": "fields are not allowed in the host",
    "https://g/{pods}": "unknown field {pods}: known fields: {namespace}, {pod}, {node}, {owner}",
}


@pytest.mark.parametrize(("template", "reason"), INVALID_DASHBOARDS.items())
def test_an_invalid_dashboard_url_is_refused(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Dashboard(template)
    assert reason in str(caught.value)


def test_the_url_of_a_dashboard_names_the_pod() -> None:
    pod = replace(page_of().edition.report.pods[0], name="a&b=c", owner="Job/train")
    link = Dashboard("https://g/d?p={namespace}/{pod}&o={owner}&n={node}")
    assert link.url_of(pod) == "https://g/d?p=llm/a%26b%3Dc&o=train&n=a100-1"
    assert Dashboard().url_of(pod) == ""


# --- figures in texts, and bars -----------------------------------------------------------


HOLDERS = st.lists(
    st.builds(
        Holder,
        namespace=st.sampled_from(["a", "b"]),
        pod=st.sampled_from(["p", "q", "r", "s"]),
        container=st.just("main"),
        cores=st.integers(0, 100),
        blocks=st.integers(0, 64),
        source=st.sampled_from(Provenance),
    ),
    max_size=12,
)


def card(*holders: Holder) -> CardReport:
    return CardReport(
        *("GPU-1", 0, "A100", 8 << 30, None, "", False, 100, 0, 0, 32, 0, 0), False, 0, 0, holders
    )


@given(holders=HOLDERS)
def test_bars_are_full_at_most_and_pods_side_by_side_differ(holders: list[Holder]) -> None:
    drawn = tenants(card(*holders))
    for each in drawn:
        assert 0 <= each.cores_at <= each.cores_at + each.cores <= 100.02
        assert 0 <= each.blocks_at <= each.blocks_at + each.blocks <= 100.02
        assert 0 <= each.color < COLORS
    colors = {(each.holder.namespace, each.holder.pod): each.color for each in drawn}
    assert len(set(colors.values())) == len(colors)


def test_figures_are_written_for_people() -> None:
    sizes = [figures.memory(each) for each in (0, 5 << 28, 6400 << 30)]
    assert sizes == ["0", "1.25 GiB", "6,400 GiB"]
    assert [figures.cards(each) for each in (1250, 0)] == ["12.5", "0"]
    assert [figures.percent(1, 3), figures.percent(0, 0)] == [33, 0]
    assert figures.moment("2026-03-09T08:00:04Z") == "2026-03-09 08:00:04 UTC"
    assert figures.moment("<soon>") == "<soon>"
    assert pages.blocks_text(1, 0) == "1 block"
    assert pages.blocks_text(8, 256 << 20) == "8 blocks (2 GiB)"


def test_requests_of_a_pod_are_written_in_its_authors_units() -> None:
    state = ClusterState(NAMES)
    state.put_pod(make_pod("one", (50, 8)))
    state.put_pod(make_pod("two", (50, 8), (200, 0)))
    state.put_pod(make_pod("whole", (100, 0)))
    found = [pages.requests_of(each) for each in state.report().pods]
    assert found == ["50 cores, 8 blocks", "250 cores, 8 blocks in 2 containers", "100 cores"]
    assert pages.requests_of(state.report().pods[0], 256 << 20) == "50 cores, 8 blocks (2 GiB)"
    halves = make_pod("halves", (100, 16), annotations={NAMES.gpu_cards_of("c0"): "2"})
    state.put_pod(halves)
    assert pages.requests_of(state.report().pods[0]) == "50 cores, 8 blocks of each of 2 cards"
    assert pages.Blocks(()).size("n1") == 0, "no node says how large a block is"
