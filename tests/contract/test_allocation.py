import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.allocation import Allocation, Evidence, decode_allocations, encode_allocations
from contract.errors import InvalidRecord
from tests.examples import any_json

ONE = Allocation(("GPU-a",), 50, 4, Evidence.WITNESS)
TEXT = '{"c0":{"cards":["GPU-a"],"cores":50,"memoryBlocks":4,"evidence":"witness"}}'

_allocations = st.builds(
    Allocation,
    st.lists(st.text(max_size=8), max_size=3).map(tuple),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(Evidence),
)
_records = st.dictionaries(st.text(max_size=8), _allocations, max_size=4)
_json = any_json("c0", "cards", "cores", "memoryBlocks", "evidence")


def test_an_annotation_is_compact_json_with_the_names_of_the_contract() -> None:
    assert encode_allocations({"c0": ONE}) == TEXT
    assert decode_allocations(TEXT) == {"c0": ONE}


@given(_records)
def test_an_annotation_survives_encoding(record: dict[str, Allocation]) -> None:
    text = encode_allocations(record)
    assert decode_allocations(text) == record
    assert encode_allocations(dict(reversed(record.items()))) == text


def _with(**changed: object) -> str:
    fields = {"cards": ["GPU-a"], "cores": 50, "memoryBlocks": 4, "evidence": "witness"}
    return json.dumps({"c0": fields | changed})


_FIELDS = "gpu-allocation[c0]: must have exactly the fields cards, cores, memoryBlocks, evidence"
_CARDS = "gpu-allocation[c0].cards: must be a list of card UUIDs"
_CORES = "gpu-allocation[c0].cores: must be a whole number"
_BLOCKS = "gpu-allocation[c0].memoryBlocks: must be a whole number"
_EVIDENCE = "gpu-allocation[c0].evidence: must be one of claim, ticket, record, witness, order"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "gpu-allocation: must be a JSON object"),
        ('{"c0":[]}', _FIELDS),
        (_with(more=1), _FIELDS),
        (_with(cards=[1]), _CARDS),
        (_with(cores=True), _CORES),
        (_with(cores=-1), _CORES),
        (_with(memoryBlocks=-1), _BLOCKS),
        (_with(evidence=["witness"]), _EVIDENCE),
    ],
)
def test_an_annotation_that_breaks_a_rule_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode_allocations(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    ["", pytest.param("[" * 100_000, id="deep"), pytest.param("9" * 5000, id="long number")],
)
def test_an_annotation_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        decode_allocations(text)
    assert str(caught.value).startswith("gpu-allocation: not JSON: ")
    assert "\n" not in str(caught.value)


@given(st.text() | _json.map(json.dumps) | st.dictionaries(st.just("c0"), _json).map(json.dumps))
def test_a_hostile_annotation_is_read_or_refused_without_another_error(text: str) -> None:
    try:
        record = decode_allocations(text)
    except InvalidRecord:
        return
    assert decode_allocations(encode_allocations(record)) == record
