from dataclasses import replace

import pytest

from agent.answer import Answer
from agent.cards import Inventory
from agent.grant import Grant, Share
from agent.inject import CONTROL_DEVICES, Injection, inject
from tests.agent.builders import CORE, MEMORY, card

CARDS = Inventory(tuple(card(index) for index in range(3)))
TWO = Grant(CORE, (Share("GPU-0", 100), Share("GPU-2", 100)))


def test_the_core_answer_carries_device_nodes_and_the_visible_devices_by_index() -> None:
    answer = inject(TWO, CARDS, Injection.NODES, control_devices=["/dev/nvidiactl"])
    assert answer == Answer(
        {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"},
        ("/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl"),
    )


def test_with_the_environment_alone_the_container_runtime_does_the_rest() -> None:
    answer = inject(TWO, CARDS, Injection.ENVVAR, control_devices=CONTROL_DEVICES)
    assert answer == Answer({"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-2"})


@pytest.mark.parametrize("mode", Injection)
def test_the_memory_answer_carries_nothing_while_nothing_enforces(mode: Injection) -> None:
    memory = Grant(MEMORY, (Share("GPU-0", 4),))
    assert inject(memory, CARDS, mode, control_devices=CONTROL_DEVICES) == Answer()


def test_a_device_node_of_several_cards_is_named_once() -> None:
    same = Inventory(tuple(replace(card(index), device="/dev/null") for index in range(3)))
    assert inject(TWO, same, Injection.NODES, control_devices=["/dev/null"]).devices == (
        "/dev/null",
    )
