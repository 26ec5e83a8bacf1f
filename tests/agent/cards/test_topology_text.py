from dataclasses import replace

from hypothesis import given, settings

from agent.cards.inventory import Discovery, UnservedCard
from agent.cards.topology_text import describe, link_matrix
from contract.inventory import Card, Inventory, Link
from tests.agent.builders import card, patient
from tests.agent.cards_strategy import inventories
from tests.examples import share

FOUR = Inventory(
    (
        Card("GPU-a", 0, "NVIDIA A10", 24 << 30, 0, bus_id="0000:07:00.0", device="/dev/nvidia0"),
        Card(
            "GPU-b",
            1,
            "NVIDIA A10",
            (24 << 30) - 1,
            1,
            bus_id="0000:0f:00.0",
            device="/dev/nvidia5",
        ),
        card(10),
        card(11),
    ),
    (Link((0, 1), "NV12"), Link((0, 10), "SYS"), Link((10, 11), "PIX")),
)


def test_all_known_values_are_printed() -> None:
    found = Discovery(
        FOUR,
        "550.54.15",
        (UnservedCard(3, None, "NVML: GPU is lost"),),
        (UnservedCard(2, "GPU-c", "in MIG mode"),),
    )
    assert describe(found) == (
        """\
driver 550.54.15

       uuid    model       memory     bus id        NUMA  device
GPU0   GPU-a   NVIDIA A10  24576 MiB  0000:07:00.0  0     /dev/nvidia0
GPU1   GPU-b   NVIDIA A10  24575 MiB  0000:0f:00.0  1     /dev/nvidia5
GPU10  GPU-10  Test        2560 MiB   ?             ?     /dev/nvidia10
GPU11  GPU-11  Test        2560 MiB   ?             ?     /dev/nvidia11

GPU2 (GPU-c) is left out: in MIG mode
GPU3 (no UUID) is left out: NVML: GPU is lost

       GPU0  GPU1  GPU10  GPU11  NUMA
GPU0   X     NV12  SYS    ?      0
GPU1   NV12  X     ?      ?      1
GPU10  SYS   ?     X      PIX    ?
GPU11  ?     ?     PIX    X      ?

  X    = the card itself
  NV#  = # NVLinks, straight or through NVSwitches
  PIX  = at most one PCIe bridge
  SYS  = the link between sockets
  ?    = not known
"""
    )


@settings(patient, max_examples=share(20))
@given(inventories(most=3))
def test_no_text_of_a_card_breaks_the_lines(inventory: Inventory) -> None:
    text = describe(Discovery(inventory))
    assert all(line.isprintable() for line in text.split("\n"))
    assert link_matrix(inventory).count("\n") == len(inventory.cards) + 1


def test_mig_instances_have_all_their_nodes_and_no_links() -> None:
    caps = "/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"
    instance = replace(card(uuid="MIG-7"), index=1007, capabilities=caps)
    assert describe(Discovery(Inventory((card(1), instance)))) == (
        """\
         uuid   model  memory    bus id  NUMA  device
GPU1     GPU-1  Test   2560 MiB  ?       ?     /dev/nvidia1
GPU1007  MIG-7  Test   2560 MiB  ?       ?     /dev/nvidia0 {caps[0]} {caps[1]}

         GPU1  GPU1007  NUMA
GPU1     X     -        ?
GPU1007  -     X        ?

  X  = the card itself
  -  = none, of a MIG instance
""".replace("{caps[0]}", caps[0]).replace("{caps[1]}", caps[1])
    )
