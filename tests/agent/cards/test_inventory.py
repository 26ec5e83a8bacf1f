import copy
from dataclasses import replace
from typing import Any

import pytest

from agent.cards.inventory import parse_inventory, write_inventory
from agent.errors import SettingsError
from contract.inventory import Card, Inventory, Link

Json = dict[str, Any]
DOCUMENT: Json = {
    "cards": [
        {
            "uuid": "GPU-b",
            "index": 1,
            "minor": 7,
            "model": "NVIDIA A10",
            "memory": "24Gi",
            "numa": 1,
            "busId": "0000:41:00.0",
        },
        {"uuid": "GPU-a", "index": 0, "memory": 1 << 30},
    ],
    "links": [{"cards": [1, 0], "kind": "NV12"}],
}


def _document(**changes: object) -> Json:
    """The full document with fields of its second card changed; ``...`` leaves one out."""
    document = copy.deepcopy(DOCUMENT)
    card = document["cards"][1]
    for field, value in changes.items():
        if value is ...:
            del card[field]
        else:
            card[field] = value
    return document


def _linked(links: object) -> Json:
    return copy.deepcopy(DOCUMENT) | {"links": links}


def test_a_full_document_is_read_cards_by_index() -> None:
    inventory = parse_inventory(DOCUMENT)
    assert inventory == Inventory(
        (
            Card("GPU-a", 0, "unknown", 1 << 30, device="/dev/nvidia0"),
            replace(
                Card("GPU-b", 1, "NVIDIA A10", 24 << 30, 1, minor=7, device="/dev/nvidia7"),
                bus_id="0000:41:00.0",
            ),
        ),
        (Link((0, 1), "NV12"),),
    )


def test_optional_fields_may_be_missing_and_links_and_devices_shared() -> None:
    assert parse_inventory(_linked(None)).links == ()
    assert parse_inventory(_document(numa=None)).cards[0].numa is None
    assert parse_inventory(_document(uuid="x" * 56)).cards[0].uuid == "x" * 56
    shared = parse_inventory(_document(device="/dev/null", minor=7)).cards
    assert [card.device for card in shared] == ["/dev/null", "/dev/nvidia7"]
    two = _linked([{"cards": [1, 0], "kind": "SYS"}, {"cards": [0, 1], "kind": "NV4"}])
    assert parse_inventory(two).links == (Link((0, 1), "SYS"), Link((0, 1), "NV4"))


def _instances(*minors: int) -> Json:
    caps = ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
    return {
        "cards": [
            {"uuid": f"MIG-{at}", "index": 1000 + at, "minor": minor, "memory": "5Gi"}
            | {"capabilities": caps}
            for at, minor in enumerate(minors)
        ]
    }


def test_mig_instances_of_one_card_have_its_minor_number() -> None:
    first, second = parse_inventory(_instances(0, 0)).cards
    assert first.device_nodes == (
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    )
    assert (first.is_instance, second.device) == (True, "/dev/nvidia0")


_WHOLE = "must be a whole number, 0 or more"
_BYTES = "must be a number of bytes such as 24Gi"
_UUID = "must be a card UUID of at most 56 letters, digits, '-', '.' and '_'"
_KNOWN = (
    "unknown field, known are busId, capabilities, device, health, index, memory, minor, model, "
    "numa, uuid"
)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "the cards file must be a mapping with the keys cards and links"),
        ({"cards": []}, "cards: Required value: a list of at least one card"),
        ({"gpus": []}, "gpus: unknown field, known are cards, links"),
        ({"a\nb": []}, '"a\\nb": unknown field, known are cards, links'),
        ({"cards": ["GPU-a"]}, "cards[0]: must be a mapping"),
        (_document(colour="red"), f"cards[1].colour: {_KNOWN}"),
        (_document(uuid=...), f"cards[1].uuid: Invalid value: null: {_UUID}"),
        (_document(uuid="a::b"), f'cards[1].uuid: Invalid value: "a::b": {_UUID}'),
        (_document(uuid="a-"), f'cards[1].uuid: Invalid value: "a-": {_UUID}'),
        (_document(uuid="a\n"), f'cards[1].uuid: Invalid value: "a\\n": {_UUID}'),
        (_document(uuid="x" * 57), f'cards[1].uuid: Invalid value: "{"x" * 57}": {_UUID}'),
        (_document(index=-1), f"cards[1].index: Invalid value: -1: {_WHOLE}"),
        (_document(index=True), f"cards[1].index: Invalid value: true: {_WHOLE}"),
        (_document(index=2**31), f"cards[1].index: Invalid value: 2147483648: {_WHOLE}"),
        (_document(minor=0.5), f"cards[1].minor: Invalid value: 0.5: {_WHOLE}"),
        (_document(numa=-1), f"cards[1].numa: Invalid value: -1: {_WHOLE}"),
        (_document(memory=...), f"cards[1].memory: Invalid value: null: {_BYTES}"),
        (_document(memory="24GB"), f'cards[1].memory: Invalid value: "24GB": {_BYTES}'),
        (_document(model=4), "cards[1].model: Invalid value: 4: must be text"),
        (_document(capabilities="/dev/null"), "cards[1].capabilities: must be a list of texts"),
        (_document(capabilities=[1]), "cards[1].capabilities: must be a list of texts"),
        (_document(device=[]), "cards[1].device: Invalid value: a list: must be text"),
        (_document(uuid="GPU-b"), 'cards: uuid: Duplicate value: "GPU-b"'),
        (_document(uuid="gpu-B"), 'cards: uuid: Duplicate value: "gpu-B"'),
        (_document(index=1), "cards: index: Duplicate value: 1"),
        (_document(minor=7), "cards: minor: Duplicate value: 7"),
        (  # its memory would be offered twice
            {"cards": [*DOCUMENT["cards"], *_instances(0)["cards"]]},
            "cards: minor: Duplicate value: 0",
        ),
        (_linked("NV12"), "links: must be a list"),
        (_linked([["NV12"]]), "links[0]: must be a mapping with the keys cards and kind"),
        (
            _linked([{"cards": [0, 1], "kind": "SYS", "width": 1}]),
            "links[0].width: unknown field, known are cards, kind",
        ),
        *(
            (
                _linked([{"cards": pair, "kind": "SYS"}]),
                "links[0].cards: Invalid value: must be the indices of two cards of this file",
            )
            for pair in (None, [0, 1, 1], [0, 2], [0, "1"], [True, 0], [{}, 1])
        ),
        (
            _linked([{"cards": [1, 1], "kind": "SYS"}]),
            "links[0].cards: a card has no link to itself",
        ),
        *(
            (
                _linked([{"cards": [0, 1], "kind": kind}]),
                f"links[0].kind: Invalid value: {shown}: must be NV<n>, PIX, PXB, PHB, NODE or SYS",
            )
            for kind, shown in ((None, "null"), ("NV", '"NV"'))
        ),
        (
            _linked([{"cards": [0, 1], "kind": "NV2"}, {"cards": [1, 0], "kind": "NV4"}]),
            "links[1].cards: Duplicate value: the link of 0 and 1",
        ),
    ],
)
def test_a_document_that_breaks_a_rule_is_refused_by_field(document: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_inventory(document)
    assert str(caught.value) == message


def test_an_inventory_is_written_as_the_document_it_is_read_from() -> None:
    inventory = parse_inventory(DOCUMENT)
    assert write_inventory(inventory) == {
        "cards": [
            {"uuid": "GPU-a", "index": 0, "minor": 0, "model": "unknown", "memory": 1 << 30},
            {**DOCUMENT["cards"][0], "memory": 24 << 30},
        ],
        "links": [{"cards": [0, 1], "kind": "NV12"}],
    }
