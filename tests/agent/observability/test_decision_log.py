"""Decisions are told in one log line each, and counted."""

import logging
from collections.abc import Callable

import pytest

from agent.allocator.model.containers import ContainerRef, Correction
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


POD: dict[str, object] = {"pod": "default/a", "uid": "uid-a", "container": "main"}
SHOWN = "GPU-0::0-2; GPU-1::5"
Act = Callable[[LoggedDecisions], None]
LINES: dict[str, tuple[Act, Told, str]] = {
    "a decision": (
        lambda log: log.decided("prefer", CLAIM, CORE, Evidence.WITNESS, IDS),
        (
            "INFO",
            "prefer",
            POD | {"resource": "core", "evidence": "witness", "count": 4, "ids": SHOWN},
        ),
        'decisions_total{call="prefer",evidence="witness"}',
    ),
    "a refusal": (
        lambda log: log.refused("allocate", CLAIM, MEMORY, 8, "no card fits"),
        (
            "WARNING",
            "refused",
            POD
            | {"call": "allocate", "resource": "memory", "count": 8}
            | {"reason": "no card fits", "times": 1},
        ),
        'refusals_total{call="allocate",resource="memory"}',
    ),
    "a correction": (
        lambda log: log.corrected(Correction(CORE, IDS, CLAIM, OTHER)),
        (
            "WARNING",
            "corrected",
            {
                "resource": "core",
                "guessed": "default/a container main",
                "proven": "default/b container side",
                "ids": SHOWN,
            },
        ),
        "corrections_total",
    ),
    "a start without proof": (
        lambda log: log.unproven(CLAIM, ["GPU-0::1"], "nobody holds these"),
        ("INFO", "unproven", POD | {"ids": "GPU-0::1", "reason": "nobody holds these"}),
        "unproven_starts_total",
    ),
    "a start of nobody known": (
        lambda log: log.unproven(None, ["GPU-0::1"], "nobody holds these"),
        (
            "INFO",
            "unproven",
            POD | dict.fromkeys(POD, "") | {"ids": "GPU-0::1", "reason": "nobody holds these"},
        ),
        "unproven_starts_total",
    ),
    "a choice without wishes": (
        lambda log: log.unadvised(CLAIM, CORE, ["GPU-0::1"]),
        ("WARNING", "chosen without wishes", POD | {"resource": "core", "ids": "GPU-0::1"}),
        "unadvised_choices_total",
    ),
    "a missing witness": (
        lambda log: log.podresources_unavailable("PodResources: UNAVAILABLE"),
        ("WARNING", "no witness", {"reason": "PodResources: UNAVAILABLE"}),
        "witness_failures_total",
    ),
}


@pytest.mark.parametrize(("act", "line", "metric"), LINES.values(), ids=LINES)
def test_a_decision_is_one_line_and_is_counted(
    *,
    decision_log: LoggedDecisions,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
    act: Act,
    line: Told,
    metric: str,
) -> None:
    act(decision_log)
    assert told(caplog) == line
    assert f"gpu_turnstile_agent_{metric} 1.0\n" in metrics.render().decode()


def test_a_metric_is_there_from_the_start(metrics: Metrics) -> None:
    assert value(metrics, "corrections_total") == value(metrics, "registered") == 0
    assert Metrics.content_type.startswith("text/plain; version=0.0.4")


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
    # An event needs the UID of what it is about.
    for unknown in (other, None, ContainerRef(PodId("kube-system", "static", ""), "main")):
        decision_log.refused("prefer", unknown, CORE, 50, "no card fits 50 cores")
    assert [name for name, _ in events] == ["a-0", "a-1", "a-2", "a-3", "a-4", "b"]
    clock.now += 10
    decision_log.tick()
    assert len(caplog.records) == 9
    last = vars(caplog.records[-1])
    assert (last["msg"], last["pod"], last["times"]) == ("refused", "default/a-1751", 1747)
    assert events[-1] == (
        "a-1751",
        "no card fits 50 cores (the last of 1747 such refusals)",
    )
    assert value(metrics, "refusals_total", call="prefer", resource="core") == 1755
