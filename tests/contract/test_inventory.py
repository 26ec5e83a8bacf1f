import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidRecord
from contract.inventory import (
    Amounts,
    Card,
    Link,
    PublishedInventory,
    decode_inventory,
    encode_inventory,
)
from tests.examples import any_json

HEALTHY = Card("GPU-a", 0, "A100", 80 << 30, 1)
UNHEALTHY = Card("GPU-b", 1, "A100", 80 << 30, None, "Xid 79 at 12:00:01")
TWO = PublishedInventory(
    256 << 20,
    (HEALTHY, UNHEALTHY),
    (Link((0, 1), "NV12"),),
    (Amounts(70, 312), Amounts(100, 320)),
)
TEXT = (
    '{"memoryBlock":268435456,"cards":['
    '{"uuid":"GPU-a","index":0,"model":"A100","memory":85899345920,"numa":1,'
    '"health":"Healthy","reason":"","freeCores":70,"freeBlocks":312},'
    '{"uuid":"GPU-b","index":1,"model":"A100","memory":85899345920,"numa":null,'
    '"health":"Unhealthy","reason":"Xid 79 at 12:00:01","freeCores":100,"freeBlocks":320}],'
    '"links":[{"cards":[0,1],"kind":"NV12"}]}'
)

_whole = st.integers(0, 2**60)
_text = st.text(max_size=8)
_nodes = st.builds(
    lambda block, cards, links: PublishedInventory(
        block, tuple(card for card, _ in cards), links, tuple(free for _, free in cards)
    ),
    _whole,
    st.lists(
        st.tuples(
            st.builds(Card, _text, _whole, _text, _whole, st.none() | _whole, _text),
            st.builds(Amounts, _whole, _whole),
        )
    ),
    st.lists(st.builds(Link, st.tuples(_whole, _whole), _text)).map(tuple),
)
_json = any_json("memoryBlock", "cards", "links", "kind")


def test_an_inventory_is_compact_json_with_the_names_of_the_contract() -> None:
    assert encode_inventory(TWO) == TEXT
    assert decode_inventory(TEXT) == TWO


def test_a_cordoned_card_is_withheld_by_readers_that_know_no_cordon() -> None:
    """An extender of an older version gives it to no pod; ours reads it as healthy."""
    cordoned = PublishedInventory(1, (replace(HEALTHY, cordoned=True),), free=(Amounts(100, 320),))
    (written,) = json.loads(encode_inventory(cordoned))["cards"]
    assert (written["health"], written["reason"]) == ("Unhealthy", "cordoned")
    assert decode_inventory(encode_inventory(cordoned)) == cordoned


@given(_nodes)
def test_an_inventory_survives_encoding(node: PublishedInventory) -> None:
    assert decode_inventory(encode_inventory(node)) == node


def _node(**changed: object) -> str:
    return json.dumps(json.loads(TEXT) | changed)


def _card(**changed: object) -> str:
    healthy, unhealthy = json.loads(TEXT)["cards"]
    return _node(cards=[healthy, unhealthy | changed])


def _link(**changed: object) -> str:
    return _node(links=[{"cards": [0, 1], "kind": "NV12"} | changed])


_FIELDS = (
    "gpu-cards.cards[1]: must have exactly the fields uuid, index, model, memory, numa, health, "
    "reason, freeCores, freeBlocks"
)
_HEALTH = "must be Unhealthy with a reason, or Healthy without one"
_WHOLE = "must be a whole number, 0 or more"
_TWO = "must be the indices of two cards"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "gpu-cards: must have exactly the fields memoryBlock, cards, links"),
        (_node(cards=None), "gpu-cards.cards: Invalid value: null: must be a list"),
        (_card(more=1), _FIELDS),
        (_card(uuid=1), "gpu-cards.cards[1].uuid: Invalid value: 1: must be text"),
        (_card(index=-1), f"gpu-cards.cards[1].index: Invalid value: -1: {_WHOLE}"),
        (
            _card(health="Healthy"),
            f'gpu-cards.cards[1].health: Invalid value: "Healthy": {_HEALTH}',
        ),
        (_card(reason=""), f'gpu-cards.cards[1].health: Invalid value: "Unhealthy": {_HEALTH}'),
        (_node(cards=[{}] * 129), "gpu-cards.cards: must be at most 128 cards"),
        (_link(more=1), "gpu-cards.links[0]: must have exactly the fields cards, kind"),
        (_link(cards=[0, "1"]), f"gpu-cards.links[0].cards: Invalid value: a list: {_TWO}"),
    ],
)
def test_an_inventory_that_breaks_a_rule_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode_inventory(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", pytest.param("[" * 100_000, id="deep")])
def test_an_inventory_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord, match=r"\Agpu-cards: not JSON: "):
        decode_inventory(text)


@given(st.text() | _json.map(json.dumps))
def test_a_hostile_inventory_is_read_or_refused_without_another_error(text: str) -> None:
    try:
        node = decode_inventory(text)
    except InvalidRecord:
        return
    assert decode_inventory(encode_inventory(node)) == node
