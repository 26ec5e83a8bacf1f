"""The questions about the webhook in tiny configurations: real processes, real TLS."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import fuzz, webhook, wrk
from bench.cpu import per_review_us
from bench.opponents import BARE, OURS, SERVED_BY, missing
from bench.reviews import requests, review
from bench.servers import make_certificates, resident_mib, serving
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


def test_the_review_function_is_timed_alone() -> None:
    found = webhook.alone_us(5_000, number=10)
    assert 1 < found.loads < found.review < 1_000_000


def test_what_wrk_prints_is_read() -> None:
    line = 'RESULT {"requests":200,"us":2000000,"failed":3,"p50":1500,"p99":20000}'
    assert wrk.parse(f"Running 2s test\n{line}\n") == wrk.Measured(100.0, 1.5, 20.0, 3)
    with pytest.raises(wrk.WrkFailed, match="wrk: unable to connect"):
        wrk.parse("unable to\nconnect")


def _turn() -> webhook.Turn:
    def measured(rate: float, p99: float) -> wrk.Measured:
        return wrk.Measured(rate, 1, p99, 0)

    return webhook.Turn(
        5_000,
        1,
        keep_alive=True,
        measured={
            OURS: [measured(100, 10), measured(50, 30), measured(80, 20)],
            BARE: [measured(100, 10), measured(100, 10), measured(80, 40)],
        },
    )


def test_ratios_are_medians_of_turns() -> None:
    turn = _turn()
    assert turn.rate(OURS) == 80
    assert turn.rate_ratio(BARE) == 1
    assert turn.p99_ratio(BARE) == 1


@pytest.mark.parametrize("name", [each for each in SERVED_BY if each not in (OURS, BARE)])
def test_each_server_answers_reviews_and_its_time_is_measured(name: str, tmp_path: Path) -> None:
    if (reason := missing().get(name)) is not None:
        pytest.skip(reason)
    make_certificates(tmp_path)
    with serving(name, tmp_path, workers=1) as server:
        body = review(5_000)
        assert server.post(body, server.tls()) == 200
        # The kernel counts in hundredths of a second: on a busy machine 0.2 s may hold none.
        measured = (per_review_us(server, body, connections=2, seconds=0.2) for _ in range(50))
        assert 1 < next(filter(None, measured)) < 1_000_000
        for worker in server.workers():
            assert resident_mib(worker) > 1


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
    monkeypatch.setattr("webhook.admission.reviewer.decode_review", None)
    with pytest.raises(Unacceptable, match="500 Internal Server Error"):
        target.try_one(requests()[0])


def _only_ours_and_the_bare_one() -> dict[str, str]:
    return {each: "not installed" for each in SERVED_BY if each not in (OURS, BARE)}


def test_without_wrk_the_rates_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is besieged, which costs nothing."""
    monkeypatch.setattr("bench.webhook.missing", _only_ours_and_the_bare_one)
    monkeypatch.setattr("bench.webhook.alone_us", lambda _size: webhook.Alone(50.0, 20.0))
    monkeypatch.setattr("bench.webhook.per_review_us", lambda *_, **__: 100.0)
    monkeypatch.setattr("bench.wrk.is_installed", lambda: False)
    result = webhook.run(webhook.Effort(turns=1, siege=(20, 1, 10), inputs=0))
    costs, rates, *_ = result.tables
    assert [row[0] for row in costs.rows] == [OURS, BARE]
    assert "not installed" in " ".join(costs.notes)
    assert rates.title == "Reviews a second: NOT MEASURED"
    assert not any("99th" in goal.what for goal in result.goals)
    under_siege = [goal for goal in result.goals if "siege" in goal.what or "500" in goal.what]
    assert [goal.met for goal in under_siege] == [True] * 3


@pytest.mark.skipif(not wrk.is_installed(), reason="wrk is not installed")
def test_servers_take_turns_under_wrk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.webhook.missing", _only_ours_and_the_bare_one)
    monkeypatch.setattr("bench.webhook.alone_us", lambda _size: webhook.Alone(50.0, 20.0))
    monkeypatch.setattr("bench.webhook.per_review_us", lambda *_, **__: 100.0)
    monkeypatch.setattr("bench.webhook.besiege", lambda *_, **__: ())  # above, without wrk
    effort = webhook.Effort(
        seconds=1,
        turns=1,
        warm_ups=0,
        sizes=(5_000,),
        workers=(1,),
        connections=2,
        inputs=0,
    )
    result = webhook.run(effort)
    assert len(result.tables[1].rows) == 2 * len(
        result.tables[0].rows
    )  # kept and new connections, servers
    assert sum("99th" in goal.what for goal in result.goals) == 2
