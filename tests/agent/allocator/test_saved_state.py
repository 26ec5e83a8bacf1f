"""The one file of our own: what is written is read back, and damage says nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.in_service import Answered, InService
from agent.allocator.saved_state import decode, encode, encode_turn
from agent.allocator.turn import Turn
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId
from tests.agent.builders import CORE, MEMORY, ids, patient, pod_id

_texts = st.text(max_size=5)
_pods = st.builds(PodId, _texts, _texts, _texts)
_answers = st.builds(
    Answered,
    container=_texts,
    resource=st.sampled_from(Resource),
    ids=st.frozensets(_texts, max_size=3),
    evidence=st.sampled_from(Evidence),
    allocated=st.booleans(),
)
_services = st.builds(
    InService,
    kubelet=_texts,
    pod=_pods,
    uid=_texts,
    confirmed=st.booleans(),
    answers=st.lists(_answers, max_size=3).map(tuple),
)
_listed = st.none() | st.dictionaries(_texts, st.integers(0, 3), max_size=3)


def _turns(before: st.SearchStrategy[Turn | None]) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        asker=st.none() | _pods,
        listed=_listed,
        guessed=st.booleans(),
        passed=st.frozensets(_pods, max_size=3),
        tried=st.frozensets(_pods, max_size=3),
        before=before,
    )


@patient
@given(st.none() | _services, _turns(st.none() | _turns(st.none())))
def test_what_is_written_is_read_back(service: InService | None, turn: Turn) -> None:
    assert decode(encode(service, encode_turn(turn))) == (service, turn)


SERVICE = InService(
    "1:2",
    pod_id("p"),
    "u-p",
    confirmed=True,
    answers=(
        Answered("c0", CORE, ids("GPU-0", range(2)), Evidence.WITNESS, allocated=True),
        Answered("c0", MEMORY, ids("GPU-0", range(1)), Evidence.ORDER, allocated=False),
    ),
)
TURN = Turn(pod_id("p"), {"default p c0": 1}, guessed=False, passed=frozenset({pod_id()}))
TEXT = encode(SERVICE, encode_turn(TURN))


DAMAGES: list[Any] = [None, 0, "x", [], {}, [[]], [["a"]], {"a": 1}]


def _variants(value: Any) -> Iterator[Any]:
    """Yield *value* with one of its parts replaced, at any depth."""
    yield from DAMAGES
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: each} for each in _variants(inner))
            yield {other: value[other] for other in value if other != key}
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], each, *value[place + 1 :]] for each in _variants(inner))


def test_a_file_of_another_form_is_read_as_far_as_it_makes_sense_and_never_crashes() -> None:
    for each in _variants(json.loads(TEXT)):
        service, turn = decode(json.dumps(each))
        assert decode(encode(service, encode_turn(turn))) == (service, turn)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{}", "\0", '{"service": null}', '{"turn": null, "service": null}'),
        TEXT.replace('"witness"', '"hearsay"'),
        TEXT.replace('"core"', '"cpu"'),
        TEXT.replace('"kubelet"', '"kublet"'),
        TEXT.replace('"u-p"]', '"u-p", "more"]'),
        TEXT.replace('c0": 1', 'c0": 1e999'),
        "[" * 100_000,
        *(TEXT[:length] for length in range(0, len(TEXT), 7)),
    ],
)
def test_a_file_that_is_none_of_ours_or_was_cut_off_says_nothing(text: str) -> None:
    assert decode(text) == (None, Turn())


@patient
@given(st.text())
def test_any_other_text_says_nothing(text: str) -> None:
    assert decode(text) == (None, Turn())
