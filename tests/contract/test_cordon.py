from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.cordon import read_cordon, write_cordon
from contract.names import Names

NAMES = Names()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-1", {"GPU-1"}),
        (" GPU-2, GPU-1,GPU-2,", {"GPU-1", "GPU-2"}),
        ("", set()),
        (7, set()),
        (None, set()),
    ],
)
def test_the_uuids_are_read(text: Any, expected: set[str]) -> None:
    assert read_cordon({NAMES.gpu_cordoned: text}, NAMES) == expected
    assert read_cordon({}, NAMES) == set()


@given(st.frozensets(st.from_regex(r"GPU-[0-9a-f]{1,8}", fullmatch=True), max_size=20))
def test_a_written_cordon_is_read_back(uuids: frozenset[str]) -> None:
    text = write_cordon(uuids)
    assert (text is None) == (not uuids)
    assert read_cordon({NAMES.gpu_cordoned: text}, NAMES) == uuids


def test_a_hostile_annotation_is_parsed_in_little_time() -> None:
    assert len(read_cordon({NAMES.gpu_cordoned: ",".join(map(str, range(10**5)))}, NAMES)) <= 256
