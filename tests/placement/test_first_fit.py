"""Where kube-scheduler puts a pod with a claim."""

from collections.abc import Sequence
from itertools import combinations

from hypothesis import assume, given
from hypothesis import strategies as st

from contract.claims import read_pod_claim
from contract.demand import ContainerKind
from contract.inventory import Amounts, Inventory, Link
from contract.wishes import LINKS
from placement.capacity import CardSet
from placement.cluster.fit import Fit, check
from placement.cluster.holdings import NodeSnapshot
from placement.cluster.nodes import parse_node
from placement.first_fit import as_claimed, first_fit, lasting_demand
from placement.pods import PodInfo
from tests.agent.builders import patient
from tests.placement.cluster.builders import NAMES, Json, a_node, a_pod, make_node, make_pod
from tests.placement.kube_scheduler import allocate, published


def dra_node(*args: object, **kwargs: object) -> Json:
    node = make_node(*args, **kwargs)  # type: ignore[arg-type]
    node["metadata"]["labels"] = {"gpu-turnstile.io/mode": "dra"}
    return node


def placed(pod: PodInfo, cards: CardSet, free: Sequence[Amounts]) -> dict[str, tuple[int, ...]]:
    plan = first_fit(as_claimed(pod), cards, free)
    return {name: part.cards for name, part in (plan or {}).items()}


def test_an_init_container_holds_its_cards_as_a_sidecar_unless_a_later_one_uses_its_request() -> (
    None
):
    pod = a_pod("a", (50, 4), inits=[(60, 4), (50, 4)])
    kinds = {each.name: each.kind for each in lasting_demand(pod.demand).containers}
    assert kinds == {
        "i0": ContainerKind.SIDECAR,
        "i1": ContainerKind.INIT,
        "c0": ContainerKind.MAIN,
    }
    assert [each.name for each in as_claimed(pod).demand.containers] == ["i0", "c0"]


def test_more_containers_than_a_claim_has_devices_are_not_placed() -> None:
    cards = a_node("n1", 1).card_set
    assert len(placed(a_pod("a", *[(1, 1)] * 32), cards, [Amounts(100, 99)])) == 32
    assert placed(a_pod("a", *[(1, 1)] * 33), cards, [Amounts(100, 99)]) == {}


@patient
@given(st.data())
def test_a_pod_fits_where_and_as_kube_scheduler_allocates_its_claim(data: st.DataObject) -> None:
    """The devices that an agent publishes, and the template that the pod gets."""
    count = data.draw(st.integers(3, 5))
    ways = st.sampled_from(["SYS", "NV1"])
    links = {pair: data.draw(ways) for pair in combinations(range(count), 2)}
    numa = data.draw(st.lists(st.sampled_from([0, 1, None]), min_size=count, max_size=count))
    held = data.draw(st.lists(st.sampled_from([0, 0, 0, 60]), min_size=count, max_size=count))
    sizes = st.tuples(st.sampled_from([10, 30, 50, 70, 100, 200]), st.integers(1, 3))
    drawn = data.draw(st.lists(sizes, min_size=1, max_size=2))
    inits = data.draw(st.lists(st.sampled_from([(30, 6), (70, 6)]), max_size=1))
    link = data.draw(st.sampled_from([*LINKS, "nvlink", ""]))
    split = {f"c{at}": cards for at, (cores, cards) in enumerate(drawn) if cards > 1 and cores < 99}
    limits = [(cores * split.get(f"c{at}", 1), 6) for at, (cores, _) in enumerate(drawn)]
    wish = {NAMES.gpu_link: link} if link else {}
    annotated = {"split": split, "inits": inits, "annotations": wish}
    claim = read_pod_claim(make_pod("a", *limits, **annotated), NAMES)  # type: ignore[arg-type]
    assume(claim is not None)  # else it is denied
    assert claim is not None
    node = parse_node(dra_node("n1", count, links=links, numa=numa), NAMES)
    inventory = Inventory(node.cards, tuple(Link(*each) for each in links.items()))
    consumed = {f"gpu-{at}": {"cores": cores, "memory": 1} for at, cores in enumerate(held)}
    expected = {
        request: tuple(int(device.removeprefix("gpu-")) for device in devices)
        for request, devices in (allocate(published(inventory), claim.spec, consumed) or {}).items()
    }
    pod = as_claimed(a_pod("a", *limits, **annotated))
    free = [Amounts(100 - cores, 31) for cores in held]
    snapshot = NodeSnapshot(node, free)
    assert isinstance(check(pod.pod_class, snapshot), Fit) == bool(expected)
    assert placed(pod, node.card_set_for(pod.wishes), free) == expected
