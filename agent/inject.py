"""What a container finds: device nodes and environment, made from a grant.

Cards are always in the order of their index, so that card 0 of a container is the same
card after every restart.
"""

from collections.abc import Sequence
from enum import StrEnum

from agent.answer import Answer
from agent.cards import Inventory
from agent.grant import Grant
from agent.tickets import Resource

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""Read by the NVIDIA container runtime, and by people."""

CONTROL_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
)
"""Device nodes every GPU program needs beside the card's own, where the host has them."""


class Injection(StrEnum):
    """How cards reach a container."""

    NODES = "nodes"
    """Device nodes in the ``Allocate`` answer."""
    ENVVAR = "envvar"
    """The environment alone; the NVIDIA container runtime does the rest."""


def inject(
    grant: Grant, inventory: Inventory, mode: Injection, *, control_devices: Sequence[str] = ()
) -> Answer:
    """Make the answer for one grant.

    The core answer carries the cards. The memory answer carries what enforces the memory
    limit, which is nothing while nothing enforces.

    Args:
        grant: what the IDs stand for.
        inventory: the node's cards.
        mode: how cards reach the container.
        control_devices: the control device nodes this host has.
    """
    if grant.resource is Resource.MEMORY:
        return Answer()
    envs = {VISIBLE_DEVICES: ",".join(grant.cards)}
    if mode is Injection.ENVVAR:
        return Answer(envs)
    nodes = [card.device for card in inventory.cards if card.uuid in grant.cards]
    return Answer(envs, tuple(dict.fromkeys([*nodes, *control_devices])))
