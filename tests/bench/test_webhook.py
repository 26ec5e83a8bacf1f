"""The questions about the webhook in tiny configurations: real processes, real TLS."""

import contextlib
from collections.abc import Iterator

import pytest

from bench import fuzz, webhook
from bench.opponents import SERVED_BY
from bench.reviews import requests, review
from bench.target import Target, Unacceptable
from webhook.admission.reviews import decode_review


@pytest.fixture
def target() -> Iterator[Target]:
    with contextlib.closing(Target()) as made:
        yield made


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_a_review_is_as_large_as_was_asked_for(size: int) -> None:
    body = review(size)
    assert size * 0.9 < len(body) < size * 1.1
    assert decode_review(body).name == "train"


def test_every_example_is_a_whole_request(target: Target) -> None:
    for number, example in enumerate(requests(), start=1):
        target.try_one(example)
        assert sum(target.statuses.values()) == number


def test_damage_is_repeatable_and_ends_in_no_500(target: Target) -> None:
    one, other = fuzz.damaged(5), fuzz.damaged(5)
    for _ in range(300):
        data = next(one)
        assert data == next(other)
        target.try_one(data)
    assert target.statuses["400"] > 50
    assert not any(status.startswith("5") for status in target.statuses)


def test_an_answer_that_may_not_be_ends_the_run(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.app.decode_review", None)
    with pytest.raises(Unacceptable, match="500 Internal Server Error"):
        target.try_one(requests()[0])


@pytest.mark.slow
def test_every_server_is_measured_and_the_webhook_withstands_a_small_siege() -> None:
    result = webhook.run(seconds=0.2, turns=1, number=2, siege=(20, 1, 10), inputs=100)
    costs, alone, _, siege, fuzzed = result.tables
    assert [row[0] for row in costs.rows] == list(SERVED_BY)
    assert [row[0] for row in alone.rows] == ["5 KB", "50 KB"]
    assert len(siege.rows) == 3
    assert sum(int(answers) for _, answers in fuzzed.rows) > 50
    assert result.wrong == []
