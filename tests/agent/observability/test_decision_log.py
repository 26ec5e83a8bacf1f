"""Decisions are told in one log line each, and counted."""

import logging

import pytest

from agent.allocator.model.ledger import Claim, Correction
from agent.allocator.model.pod_view import PodId
from agent.observability.decision_log import LogJournal
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import FakeClock

CLAIM = Claim(PodId("default", "a", "uid-a"), "main")
OTHER = Claim(PodId("default", "b", "uid-b"), "side")
IDS = frozenset({"GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::5"})

Told = tuple[str, str, dict[str, object]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def journal(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> LogJournal:
    caplog.set_level(logging.INFO, "agent.observability.decision_log")
    return LogJournal(metrics)


def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The one line that was logged, with its fields."""
    (record,) = caplog.records
    usual = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
    fields = {key: value for key, value in record.__dict__.items() if key not in usual}
    return record.levelname, record.getMessage(), fields


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gpu_turnstile_agent_{name}", labels)


def test_a_decision(
    journal: LogJournal, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    journal.decided("prefer", CLAIM, CORE, Evidence.WITNESS, IDS)
    assert told(caplog) == (
        "INFO",
        "prefer",
        {
            "pod": "default/a",
            "uid": "uid-a",
            "container": "main",
            "resource": "core",
            "evidence": "witness",
            "count": 4,
            "ids": "GPU-0::0-2; GPU-1::5",
        },
    )
    assert value(metrics, "decisions_total", call="prefer", evidence="witness") == 1
    assert value(metrics, "decisions_total", call="allocate", evidence="witness") is None


def test_a_refusal(journal: LogJournal, metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    journal.refused("allocate", CLAIM, MEMORY, 8, "no card fits")
    assert told(caplog) == (
        "WARNING",
        "refused",
        {
            "call": "allocate",
            "pod": "default/a",
            "uid": "uid-a",
            "container": "main",
            "resource": "memory",
            "count": 8,
            "reason": "no card fits",
            "times": 1,
        },
    )
    assert value(metrics, "refusals_total", call="allocate", resource="memory") == 1


def test_a_correction(
    journal: LogJournal, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    journal.corrected(Correction(CORE, IDS, CLAIM, OTHER))
    assert told(caplog) == (
        "WARNING",
        "corrected",
        {
            "resource": "core",
            "guessed": "default/a container main",
            "proven": "default/b container side",
            "ids": "GPU-0::0-2; GPU-1::5",
        },
    )
    assert value(metrics, "corrections_total") == 1


@pytest.mark.parametrize(
    ("claim", "named"), [(CLAIM, ("default/a", "uid-a", "main")), (None, ("", "", ""))]
)
def test_a_start_without_proof(
    journal: LogJournal,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    claim: Claim | None,
    named: tuple[str, str, str],
) -> None:
    journal.unproven(claim, ["GPU-0::1"], "nobody holds these")
    assert told(caplog) == (
        "INFO",
        "unproven",
        {
            **dict(zip(("pod", "uid", "container"), named, strict=True)),
            "ids": "GPU-0::1",
            "reason": "nobody holds these",
        },
    )
    assert value(metrics, "unproven_starts_total") == 1


def test_a_choice_without_wishes(
    journal: LogJournal, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    claim = Claim(PodId("ns", "p", "u1"), "main")
    journal.unadvised(claim, CORE, ["GPU-0::1"])
    assert told(caplog) == (
        "WARNING",
        "chosen without wishes",
        {
            "pod": "ns/p",
            "uid": "u1",
            "container": "main",
            "resource": "core",
            "ids": "GPU-0::1",
        },
    )
    assert value(metrics, "unadvised_choices_total") == 1


def test_a_missing_witness(
    journal: LogJournal, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    journal.blind("PodResources: UNAVAILABLE")
    assert told(caplog) == ("WARNING", "no witness", {"reason": "PodResources: UNAVAILABLE"})
    assert value(metrics, "witness_failures_total") == 1


def test_all_metrics_are_there_from_the_start(metrics: Metrics) -> None:
    text = metrics.render().decode()
    for name in (
        "decisions_total",
        "refusals_total",
        "corrections_total",
        "unproven_starts_total",
        "witness_failures_total",
        "patches_total",
        "registered",
    ):
        assert f"# TYPE gpu_turnstile_agent_{name} " in text
    assert value(metrics, "corrections_total") == 0
    assert value(metrics, "registered") == 0
    assert Metrics.content_type.startswith("text/plain; version=0.0.4")


def test_two_agents_in_one_process_count_apart() -> None:
    one, two = Metrics(), Metrics()
    one.blind.inc()
    assert value(one, "witness_failures_total") == 1
    assert value(two, "witness_failures_total") == 0


@pytest.mark.parametrize(
    "claim", [None, Claim(PodId("default", "static", ""), "main")], ids=["nobody", "no UID"]
)
def test_a_refusal_is_told_to_the_author_of_a_pod_that_the_api_knows(
    metrics: Metrics, claim: Claim | None
) -> None:
    """An event needs the UID of what it is about."""
    told_of: list[tuple[str, Claim, str]] = []
    journal = LogJournal(metrics, tell=lambda *told: told_of.append(told))
    journal.refused("allocate", claim, MEMORY, 8, "no card fits")
    assert told_of == []
    journal.refused("prefer", CLAIM, CORE, 8, "no card fits")
    assert told_of == [("prefer", CLAIM, "no card fits")]


def test_equal_refusals_are_told_together_with_how_many_there_were(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A Deployment makes new pods for as long as the node refuses them."""
    caplog.set_level(logging.INFO, "agent.observability.decision_log")
    clock, events = FakeClock(), list[tuple[str, str]]()
    journal = LogJournal(
        metrics,
        tell=lambda _call, claim, reason: events.append((claim.pod.name, reason)),
        clock=clock,
    )
    for number in range(1752):
        claim = Claim(PodId("default", f"a-{number}", f"uid-{number}"), "main")
        journal.refused("prefer", claim, CORE, 50, "no card fits 50 cores")
    other = Claim(PodId("elsewhere", "b", "uid-b"), "main")
    journal.refused("prefer", other, CORE, 50, "no card fits 50 cores")
    assert [name for name, _ in events] == ["a-0", "a-1", "a-2", "a-3", "a-4", "b"]
    clock.now += 10
    journal.tick()
    assert len(caplog.records) == 7
    last = vars(caplog.records[-1])
    assert (last["msg"], last["pod"], last["times"]) == ("refused", "default/a-1751", 1747)
    assert events[-1] == (
        "a-1751",
        "no card fits 50 cores (the last of 1747 such refusals)",
    )
    assert value(metrics, "refusals_total", call="prefer", resource="core") == 1753
