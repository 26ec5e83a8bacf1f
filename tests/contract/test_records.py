"""Annotations of ours: what containers have, the cards of a node, and cordoned cards."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.allocation import Allocation, Evidence, decode_allocations, encode_allocations
from contract.cordon import (
    Cordon,
    describe_unknown,
    find_cordoned,
    read_cordon,
    write_cordon,
)
from contract.errors import InvalidRecord
from contract.inventory import (
    Amounts,
    Card,
    Link,
    PublishedInventory,
    decode_inventory,
    encode_inventory,
)
from contract.names import Names
from contract.text import fold_uuid
from tests.examples import any_json

Codec = tuple[Callable[[Any], str], Callable[[str], Any]]
ALLOCATIONS: Codec = (encode_allocations, decode_allocations)
INVENTORY: Codec = (encode_inventory, decode_inventory)
NAMES = Names()

ONE = {"c0": Allocation(("GPU-a",), 50, 4, Evidence.WITNESS)}
ONE_TEXT = '{"c0":{"cards":["GPU-a"],"cores":50,"memoryBlocks":4,"evidence":"witness"}}'
HEALTHY = Card("GPU-a", 0, "A100", 80 << 30, 1)
UNHEALTHY = Card("GPU-b", 1, "A100", 80 << 30, None, "Xid 79 at 12:00:01")
TWO = PublishedInventory(
    256 << 20,
    (HEALTHY, UNHEALTHY),
    (Link((0, 1), "NV12"),),
    (Amounts(70, 312), Amounts(100, 320)),
)
TWO_TEXT = (
    '{"memoryBlock":268435456,"cards":['
    '{"uuid":"GPU-a","index":0,"model":"A100","memory":85899345920,"numa":1,'
    '"health":"Healthy","reason":"","freeCores":70,"freeBlocks":312},'
    '{"uuid":"GPU-b","index":1,"model":"A100","memory":85899345920,"numa":null,'
    '"health":"Unhealthy","reason":"Xid 79 at 12:00:01","freeCores":100,"freeBlocks":320}],'
    '"links":[{"cards":[0,1],"kind":"NV12"}]}'
)

_whole = st.integers(0, 2**60)
_text = st.text(max_size=8)
_allocations = st.builds(
    Allocation,
    st.lists(_text, max_size=3).map(tuple),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(Evidence),
)
_cards = st.lists(
    st.tuples(
        st.builds(Card, _text, _whole, _text, _whole, st.none() | _whole, _text),
        st.builds(Amounts, _whole, _whole),
    ),
    unique_by=(lambda each: fold_uuid(each[0].uuid), lambda each: each[0].index),
)


def _node_of(block: int, found: list[tuple[Card, Amounts]], kinds: list[str]) -> PublishedInventory:
    indices = sorted(card.index for card, _ in found)
    links = tuple(Link(pair, kind) for pair, kind in zip(pairwise(indices), kinds, strict=False))
    cards, free = [*zip(*found, strict=True)] or ((), ())
    return PublishedInventory(block, tuple(cards), links, tuple(free))


_kinds = st.lists(st.sampled_from(["NV1", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]))
_nodes = st.builds(_node_of, st.integers(1, 2**60), _cards, _kinds)


@pytest.mark.parametrize(
    ("codec", "record", "text"), [(ALLOCATIONS, ONE, ONE_TEXT), (INVENTORY, TWO, TWO_TEXT)]
)
def test_a_record_is_compact_json_with_the_names_of_the_contract(
    codec: Codec, record: object, text: str
) -> None:
    encode, decode = codec
    assert encode(record) == text
    assert decode(text) == record


@given(st.dictionaries(_text, _allocations, max_size=4), _nodes)
def test_a_record_survives_encoding(
    allocations: dict[str, Allocation], node: PublishedInventory
) -> None:
    text = encode_allocations(allocations)
    assert decode_allocations(text) == allocations
    assert encode_allocations(dict(reversed(allocations.items()))) == text
    assert decode_inventory(encode_inventory(node)) == node


def test_a_cordoned_card_is_withheld_by_readers_that_know_no_cordon() -> None:
    """An extender of an older version gives it to no pod; ours reads it as healthy."""
    cordoned = PublishedInventory(1, (replace(HEALTHY, cordoned=True),), free=(Amounts(100, 320),))
    (written,) = json.loads(encode_inventory(cordoned))["cards"]
    assert (written["health"], written["reason"]) == ("Unhealthy", "cordoned")
    assert decode_inventory(encode_inventory(cordoned)) == cordoned


def _allocation(**changed: object) -> str:
    return json.dumps({"c0": json.loads(ONE_TEXT)["c0"] | changed})


def _node(**changed: object) -> str:
    return json.dumps(json.loads(TWO_TEXT) | changed)


def _card(**changed: object) -> str:
    healthy, unhealthy = json.loads(TWO_TEXT)["cards"]
    return _node(cards=[healthy, unhealthy | changed])


def _link(**changed: object) -> str:
    return _node(links=[{"cards": [0, 1], "kind": "NV12"} | changed])


_FIELDS = "[c0]: must have exactly the fields cards, cores, memoryBlocks, evidence"
_CARD_FIELDS = (
    ".cards[1]: must have exactly the fields uuid, index, model, memory, numa, health, reason, "
    "freeCores, freeBlocks"
)
_HEALTH = "must be Unhealthy with a reason, or Healthy without one"
_WHOLE = "must be a whole number, 0 or more"
_BLOCK = "must be a whole number, 1 or more"
_COUNTS = ("memory", "numa", "freeCores", "freeBlocks")
_KINDS = "must be NV1, NV2, ... or PIX, PXB, PHB, NODE or SYS"
_OF_NODE = (
    "Invalid value: a list: must be the indices of two cards of the node, the smaller one first"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", ": must be a JSON object"),
        ('{"c0":[]}', _FIELDS),
        (_allocation(more=1), _FIELDS),
        (_allocation(cards=[1]), "[c0].cards: must be a list of card UUIDs"),
        (_allocation(cores=True), "[c0].cores: must be a whole number"),
        (_allocation(cores=-1), "[c0].cores: must be a whole number"),
        (_allocation(memoryBlocks=-1), "[c0].memoryBlocks: must be a whole number"),
        (
            _allocation(evidence=["witness"]),
            "[c0].evidence: must be one of claim, ticket, record, witness, order",
        ),
    ],
)
def test_an_allocation_that_breaks_a_rule_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode_allocations(text)
    assert str(caught.value) == f"gpu-allocation{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", ": must have exactly the fields memoryBlock, cards, links"),
        (_node(cards=None), ".cards: Invalid value: null: must be a list"),
        (_card(more=1), _CARD_FIELDS),
        (_card(uuid=1), ".cards[1].uuid: Invalid value: 1: must be text"),
        (_card(index=-1), f".cards[1].index: Invalid value: -1: {_WHOLE}"),
        (_card(index=0), ".cards[1].index: Invalid value: 0: another card has the same"),
        (_card(uuid="GPU-a"), '.cards[1].uuid: Invalid value: "GPU-a": another card has the same'),
        (_card(uuid="gpu-A"), '.cards[1].uuid: Invalid value: "gpu-A": another card has the same'),
        *(
            (_card(**{name: -1}), f".cards[1].{name}: Invalid value: -1: {_WHOLE}")
            for name in _COUNTS
        ),
        (_card(model=None), ".cards[1].model: Invalid value: null: must be text"),
        (_node(memoryBlock=-1), f".memoryBlock: Invalid value: -1: {_BLOCK}"),
        (_node(memoryBlock=0), f".memoryBlock: Invalid value: 0: {_BLOCK}"),
        (_card(health="Healthy"), f'.cards[1].health: Invalid value: "Healthy": {_HEALTH}'),
        (_card(reason=""), f'.cards[1].health: Invalid value: "Unhealthy": {_HEALTH}'),
        (_node(cards=[{}] * 129), ".cards: must be at most 128 cards"),
        (_link(more=1), ".links[0]: must have exactly the fields cards, kind"),
        (
            _link(cards=[0, "1"]),
            ".links[0].cards: Invalid value: a list: must be the indices of two cards",
        ),
        *((_link(cards=pair), f".links[0].cards: {_OF_NODE}") for pair in ([1, 0], [0, 0], [0, 2])),
        (
            _link(kind="WIFI"),
            f'.links[0].kind: Invalid value: "WIFI": {_KINDS}',
        ),
    ],
)
def test_an_inventory_that_breaks_a_rule_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode_inventory(text)
    assert str(caught.value) == f"gpu-cards{message}"


@pytest.mark.parametrize("decode", [decode_allocations, decode_inventory])
@pytest.mark.parametrize("text", ["", "[" * 100_000, "9" * 5000], ids=["empty", "deep", "long"])
def test_a_record_that_is_not_json_is_refused(decode: Callable[[str], Any], text: str) -> None:
    with pytest.raises(InvalidRecord, match=r"\Agpu-(cards|allocation): not JSON: .*\Z"):
        decode(text)


_json = any_json("c0", "cards", "cores", "memoryBlocks", "evidence")
_hostile = _json | st.dictionaries(st.just("c0"), _json) | any_json("memoryBlock", "cards", "links")


@pytest.mark.parametrize("codec", [ALLOCATIONS, INVENTORY])
@given(st.text() | _hostile.map(json.dumps))
def test_a_hostile_record_is_read_or_refused_without_another_error(codec: Codec, text: str) -> None:
    encode, decode = codec
    try:
        record = decode(text)
    except InvalidRecord:
        return
    assert decode(encode(record)) == record


CARDS = ("GPU-1a", "GPU-2b")


@pytest.mark.parametrize(
    ("text", "expected", "unknown"),
    [
        ("GPU-1a", {"GPU-1a"}, []),
        (" GPU-2b, GPU-1a,GPU-2b,", {"GPU-1a", "GPU-2b"}, []),
        ("GPU-1A,gpu-2b", {"GPU-1a", "GPU-2b"}, []),
        ("", set(), []),
        (" , ", set(), []),
        (7, set(), []),
        (None, set(), []),
        ("0", set(), ["0"]),
        ("all", set(), ["all"]),
        ("*", set(), ["*"]),
        ("GPU-1a;GPU-2b", set(), ["GPU-1a;GPU-2b"]),
        ("GPU-1a GPU-2b", set(), ["GPU-1a GPU-2b"]),
        ("GPU-1a\nGPU-2b", set(), ["GPU-1a\nGPU-2b"]),
        ('["GPU-1a","GPU-2b"]', set(), ['["GPU-1a"', '"GPU-2b"]']),
        ("GPU-1", set(), ["GPU-1"]),  # shortened
        ("1a", set(), ["1a"]),
        ("GPU-9,GPU-1a, gpu-2X,GPU-9", {"GPU-1a"}, ["GPU-9", "gpu-2X"]),
    ],
)
def test_what_people_write_names_a_card_or_is_reported(
    text: Any, expected: set[str], unknown: list[str]
) -> None:
    entries = read_cordon({NAMES.gpu_cordoned: text}, NAMES)
    assert find_cordoned(entries, CARDS) == Cordon(frozenset(expected), tuple(unknown))
    assert read_cordon({}, NAMES) == ()


@given(st.frozensets(st.from_regex(r"GPU-[0-9a-f]{1,8}", fullmatch=True), max_size=20))
def test_a_written_cordon_is_read_back(uuids: frozenset[str]) -> None:
    text = write_cordon(uuids)
    assert (text is None) == (not uuids)
    entries = read_cordon({NAMES.gpu_cordoned: text}, NAMES)
    assert find_cordoned(entries, uuids) == Cordon(uuids)


GONE = ["GPU-5f3c1a2e-276c-c9cb-b366-c6fa655957c5", "MIG-5F3C1A2E-276C-C9CB-B366-C6FA655957C6"]
WHERE = f"metadata.annotations[{NAMES.gpu_cordoned}]"
RULE = "must be UUIDs of cards of this node, separated by commas; anything else cordons no card"


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (
            GONE[:1],
            (
                f'{WHERE}: Not found: "{GONE[0]}": names a card that this node does not have, or '
                "no longer has; it cordons nothing"
            ),
        ),
        (
            ["A;B", *GONE],
            (
                f'{WHERE}: Not found: "{GONE[0]}", "{GONE[1]}": name cards that this node does '
                "not have, or no longer has; they cordon nothing; "
                f'{WHERE}: Invalid value: "A;B": {RULE}'
            ),
        ),
        ([GONE[0][:-1]], f'{WHERE}: Invalid value: "{GONE[0][:-1]}": {RULE}'),
        ([f"MIG-{GONE[0]}/1/5"], None),
    ],
)
def test_a_uuid_of_no_card_is_not_called_invalid(entries: list[str], text: str | None) -> None:
    found = describe_unknown(entries, NAMES)
    assert found == text if text else ": Not found: " in found


def test_a_hostile_cordon_is_parsed_in_little_time() -> None:
    entries = read_cordon({NAMES.gpu_cordoned: ",".join(map(str, range(10**5)))}, NAMES)
    assert len(entries) == 257
    assert describe_unknown(entries, NAMES) == (
        f'metadata.annotations[{NAMES.gpu_cordoned}]: Invalid value: "0", "1", "2" and 254 more: '
        "must be UUIDs of cards of this node, separated by commas; anything else cordons no card"
    )
