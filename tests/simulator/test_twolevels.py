"""The burst of the demo on several nodes."""

from contract.names import Names
from simulator.fleet import SHIPPED
from simulator.manifests import Json, read_manifests
from simulator.scheduler.configuration import parse_configuration
from simulator.twolevels import LOAD, NODES, SEED, cards_of, mixed_pods

NAMES = Names()


def _cores(pods: list[Json]) -> list[int]:
    return [int(each["spec"]["containers"][0]["resources"]["limits"][NAMES.core]) for each in pods]


def test_equal_seeds_give_equal_pods_that_fill_what_they_are_told_to() -> None:
    pods = mixed_pods(LOAD, seed=SEED, names=NAMES)
    assert pods == mixed_pods(LOAD, seed=SEED, names=NAMES)
    assert len({each["metadata"]["name"] for each in pods}) == len(pods) == 27
    assert LOAD - 30 < sum(_cores(pods)) <= LOAD
    # By count there is room for all of them.
    assert sum(_cores(pods)) < len(NODES) * 400


def test_no_card_is_on_two_nodes() -> None:
    cards = [card["uuid"] for number in range(len(NODES)) for card in cards_of(number)["cards"]]
    assert len(set(cards)) == len(cards) == 16


def test_the_scheduler_of_the_demo_is_configured_by_what_is_installed() -> None:
    (configuration,) = read_manifests(SHIPPED)
    (extender,) = parse_configuration(configuration).extenders
    assert extender.managed == {NAMES.core}
