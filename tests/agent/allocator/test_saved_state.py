"""The one file of our own: what is written is read back, and damage says nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.current_pod import Assignment, CurrentPod
from agent.allocator.resolver import LastCall
from agent.allocator.saved_state import Encoder, decode
from contract.allocation import Evidence
from contract.resource import Resource
from placement.pods import PodId
from tests.agent.builders import CORE, MEMORY, ids, patient, pod_id

_texts = st.sampled_from(["", "a", "c0", "\n", '"', "\u00e9", "\ud800", "\0"])
_pods = st.builds(PodId, _texts, _texts, _texts)
_assignments = st.builds(
    Assignment,
    container=_texts,
    resource=st.sampled_from(Resource),
    ids=st.frozensets(_texts, max_size=3),
    evidence=st.sampled_from(Evidence),
    allocated=st.booleans(),
)
_services = st.builds(
    CurrentPod,
    id=_pods,
    uid=_texts,
    confirmed=st.booleans(),
    assignments=st.lists(_assignments, max_size=3).map(tuple),
)
_listed = st.none() | st.dictionaries(_texts, st.integers(0, 3), max_size=3)


def _turns(before: st.SearchStrategy[LastCall | None]) -> st.SearchStrategy[LastCall]:
    return st.builds(
        LastCall,
        pod=st.none() | _pods,
        signatures=_listed,
        guessed=st.booleans(),
        finished=st.frozensets(_pods, max_size=3),
        ruled_out=st.frozensets(_pods, max_size=3),
        fallback=before,
        at_wrong_guess=_listed,
    )


@patient
@given(st.none() | _texts, st.none() | _services, _turns(st.none() | _turns(st.none())))
def test_what_is_written_is_read_back(
    kubelet: str | None, service: CurrentPod | None, turn: LastCall
) -> None:
    assert decode(Encoder().encode(kubelet, service, turn)) == (kubelet, service, turn)


SERVICE = CurrentPod(
    pod_id("p"),
    "u-p",
    confirmed=True,
    assignments=(
        Assignment("c0", CORE, ids("GPU-0", range(2)), Evidence.WITNESS, allocated=True),
        Assignment("c0", MEMORY, ids("GPU-0", range(1)), Evidence.ORDER, allocated=False),
    ),
)
TURN = LastCall(pod_id("p"), {"default p c0": 1}, guessed=False, finished=frozenset({pod_id()}))
TEXT = Encoder().encode("1:2", SERVICE, TURN)


DAMAGES: list[Any] = [None, 0, "x", [], {}, [[]], [["a"]], {"a": 1}]


def _variants(value: Any) -> Iterator[Any]:
    """Yield *value* with one of its parts replaced, at any depth."""
    yield from DAMAGES
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from ({**value, key: each} for each in _variants(inner))
            yield {other: value[other] for other in value if other != key}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from ([*value[:index], each, *value[index + 1 :]] for each in _variants(inner))


def test_a_file_of_another_form_is_read_as_far_as_it_makes_sense_and_never_crashes() -> None:
    for each in _variants(json.loads(TEXT)):
        found = decode(json.dumps(each))
        assert decode(Encoder().encode(*found)) == found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "null",
            "[]",
            "{}",
            "\0",
            '{"current": null}',
            '{"kubelet": null, "last_call": null, "current": null}',
        ),
        TEXT.replace('"witness"', '"hearsay"'),
        TEXT.replace('"core"', '"cpu"'),
        TEXT.replace('"kubelet"', '"kublet"'),
        TEXT.replace('"u-p"]', '"u-p", "more"]'),
        TEXT.replace('c0": 1', 'c0": 1e999'),
        "[" * 100_000,
        *(TEXT[:length] for length in range(0, len(TEXT), 7)),
    ],
)
def test_a_foreign_or_truncated_file_is_ignored(text: str) -> None:
    assert decode(text) == (None, None, LastCall())


@patient
@given(st.text())
def test_any_other_text_is_ignored(text: str) -> None:
    assert decode(text) == (None, None, LastCall())
