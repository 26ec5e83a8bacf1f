"""Numbers in texts, and bars that do not overflow and tell pods apart by color."""

from hypothesis import given
from hypothesis import strategies as st

from placement.cluster.holdings import Provenance
from tests.placement.cluster.builders import NAMES, make_pod
from view.model.reports import CardReport, Holder
from view.model.state import ClusterState
from view.web import figures, pages
from view.web.figures import COLORS, tenants

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
