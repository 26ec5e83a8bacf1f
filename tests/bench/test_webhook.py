"""The questions about the webhook in a tiny configuration: real processes, real TLS."""

import pytest

from bench import webhook
from bench.reviews import review
from webhook.admission.reviews import decode_review


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_a_review_has_the_requested_size(size: int) -> None:
    body = review(size)
    assert size * 0.9 < len(body) < size * 1.1
    assert decode_review(body).name == "train"


@pytest.mark.slow
def test_both_sizes_are_measured_and_no_honest_review_fails() -> None:
    result = webhook.run(seconds=0.2, turns=1, stalled=30)
    costs, stalled = result.tables
    assert [row[0] for row in costs.rows] == ["5 KB", "50 KB"]
    assert len(stalled.rows) == 1
    assert result.wrong == []
