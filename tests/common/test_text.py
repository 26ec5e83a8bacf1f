"""Text of others is shortened visibly."""

import pytest

from common.text import cut


@pytest.mark.parametrize(("text", "shown"), [("abcd", "abcd"), ("abcde", "a...")])
def test_cut_shows_that_it_was(text: str, shown: str) -> None:
    assert cut(text, 4) == shown
