from agent.cards.health import Probe
from agent.cards.inventory import Discovery
from agent.cards.source import StaticSource, discover, none_served
from tests.agent.builders import device_table
from tests.agent.nvml_node import NvmlScript


def test_the_cards_of_a_file_are_always_healthy() -> None:
    with StaticSource(device_table().inventory).open() as session:
        assert session.watch(["GPU-0"]) == {}
        assert not session.watching
        assert session.wait(0) is None
        assert session.probe("GPU-0") == Probe()


def test_a_node_without_a_card_to_serve_shows_the_reason(node: NvmlScript) -> None:
    node.card(1, mig=1)
    node.fail("nvmlDeviceGetUUID", 15, card=0)
    found = discover(None)
    assert found.inventory.cards == ()
    assert none_served(found) == (
        "no card can be served: card 0: NVML: GPU is lost; card 1: in MIG mode, which is not served"
    )
    assert none_served(Discovery(device_table(0).inventory)) == (
        "no card can be served: the node has none"
    )
