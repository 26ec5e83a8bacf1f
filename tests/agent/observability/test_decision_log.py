"""Decisions are told in one log line each, and counted."""

import logging

import pytest

from agent.allocator.model.ledger import ContainerRef, Correction
from agent.allocator.model.pod_view import PodId
from agent.observability.decision_log import LoggedDecisions
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import FakeClock

CLAIM = ContainerRef(PodId("default", "a", "uid-a"), "main")
OTHER = ContainerRef(PodId("default", "b", "uid-b"), "side")
IDS = frozenset({"GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::5"})

Told = tuple[str, str, dict[str, object]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def decision_log(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> LoggedDecisions:
    caplog.set_level(logging.INFO, "agent.observability.decision_log")
    return LoggedDecisions(metrics)


def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The one line that was logged, with its fields."""
    (record,) = caplog.records
    usual = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}
    fields = {key: value for key, value in record.__dict__.items() if key not in usual}
    return record.levelname, record.getMessage(), fields


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gpu_turnstile_agent_{name}", labels)


def test_a_decision(
    decision_log: LoggedDecisions, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    decision_log.decided("prefer", CLAIM, CORE, Evidence.WITNESS, IDS)
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


def test_a_refusal(
    decision_log: LoggedDecisions, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    decision_log.refused("allocate", CLAIM, MEMORY, 8, "no card fits")
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
    decision_log: LoggedDecisions, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    decision_log.corrected(Correction(CORE, IDS, CLAIM, OTHER))
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
    ("ref", "named"), [(CLAIM, ("default/a", "uid-a", "main")), (None, ("", "", ""))]
)
def test_a_start_without_proof(
    decision_log: LoggedDecisions,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    ref: ContainerRef | None,
    named: tuple[str, str, str],
) -> None:
    decision_log.unproven(ref, ["GPU-0::1"], "nobody holds these")
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
    decision_log: LoggedDecisions, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    ref = ContainerRef(PodId("ns", "p", "u1"), "main")
    decision_log.unadvised(ref, CORE, ["GPU-0::1"])
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
    decision_log: LoggedDecisions, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    decision_log.podresources_unavailable("PodResources: UNAVAILABLE")
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
    "ref", [None, ContainerRef(PodId("default", "static", ""), "main")], ids=["nobody", "no UID"]
)
def test_a_refusal_is_told_to_the_author_of_a_pod_that_the_api_knows(
    metrics: Metrics, ref: ContainerRef | None
) -> None:
    """An event needs the UID of what it is about."""
    told_of: list[tuple[str, ContainerRef, str]] = []
    decision_log = LoggedDecisions(metrics, tell=lambda *told: told_of.append(told))
    decision_log.refused("allocate", ref, MEMORY, 8, "no card fits")
    assert told_of == []
    decision_log.refused("prefer", CLAIM, CORE, 8, "no card fits")
    assert told_of == [("prefer", CLAIM, "no card fits")]


def test_equal_refusals_are_told_together_with_how_many_there_were(
    metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    """A Deployment makes new pods for as long as the node refuses them."""
    caplog.set_level(logging.INFO, "agent.observability.decision_log")
    clock, events = FakeClock(), list[tuple[str, str]]()
    decision_log = LoggedDecisions(
        metrics,
        tell=lambda _call, ref, reason: events.append((ref.pod.name, reason)),
        clock=clock,
    )
    for number in range(1752):
        ref = ContainerRef(PodId("default", f"a-{number}", f"uid-{number}"), "main")
        decision_log.refused("prefer", ref, CORE, 50, "no card fits 50 cores")
    other = ContainerRef(PodId("elsewhere", "b", "uid-b"), "main")
    decision_log.refused("prefer", other, CORE, 50, "no card fits 50 cores")
    assert [name for name, _ in events] == ["a-0", "a-1", "a-2", "a-3", "a-4", "b"]
    clock.now += 10
    decision_log.tick()
    assert len(caplog.records) == 7
    last = vars(caplog.records[-1])
    assert (last["msg"], last["pod"], last["times"]) == ("refused", "default/a-1751", 1747)
    assert events[-1] == (
        "a-1751",
        "no card fits 50 cores (the last of 1747 such refusals)",
    )
    assert value(metrics, "refusals_total", call="prefer", resource="core") == 1753
