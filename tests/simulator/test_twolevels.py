"""The burst of the demo on several nodes."""

from contract.names import Names
from simulator.fleet import SHIPPED
from simulator.manifests import read_manifests
from simulator.scheduler.configuration import parse_configuration
from simulator.twolevels import NODES, cards_of

NAMES = Names()


def test_no_card_is_on_two_nodes() -> None:
    cards = [card["uuid"] for number in range(len(NODES)) for card in cards_of(number)["cards"]]
    assert len(set(cards)) == len(cards) == 16


def test_the_scheduler_of_the_demo_is_configured_by_what_is_installed() -> None:
    (configuration,) = read_manifests(SHIPPED)
    (extender,) = parse_configuration(configuration).extenders
    assert extender.managed == {NAMES.core}
