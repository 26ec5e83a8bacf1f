"""Decisions are one log line each, and counted; repeated ones are counted together."""

import logging
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocator.interfaces import Correction
from agent.holdings.holding import ContainerRef
from agent.observability.decision_log import LoggedDecisions, RepeatFilter
from agent.observability.metrics import Metrics
from contract.allocation import Evidence
from placement.pods import PodId
from tests.agent.builders import CORE, MEMORY
from tests.agent.fakes import FakeClock


def ref(name: str, uid: str, namespace: str = "default") -> ContainerRef:
    return ContainerRef(PodId(namespace, name, uid), "main")


A, B = ref("a", "uid-a"), ref("b", "uid-b")
IDS = frozenset({"GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::5"})

LINES: list[tuple[Callable[[LoggedDecisions], None], str, str]] = [
    (
        lambda log: log.decided("prefer", A, CORE, Evidence.WITNESS, IDS),
        "INFO prefer | A resource=core evidence=witness count=4 ids=GPU-0::0-2; GPU-1::5",
        'decisions_total{call="prefer",evidence="witness"}',
    ),
    (
        lambda log: log.refused("allocate", A, MEMORY, 8, "no card fits"),
        "WARNING refused | call=allocate A resource=memory count=8 reason=no card fits times=1",
        'refusals_total{call="allocate",resource="memory"}',
    ),
    (
        lambda log: log.corrected(Correction(CORE, IDS, A, B)),
        (
            "WARNING corrected | resource=core guessed=default/a container main "
            "proven=default/b container main ids=GPU-0::0-2; GPU-1::5"
        ),
        "corrections_total",
    ),
    (
        lambda log: log.unproven(A, ["GPU-0::1"], "no container holds these"),
        "INFO unproven | A ids=GPU-0::1 reason=no container holds these",
        "unproven_starts_total",
    ),
    (
        lambda log: log.unproven(None, ["GPU-0::1"], "no container holds these"),
        "INFO unproven | pod= uid= container= ids=GPU-0::1 reason=no container holds these",
        "unproven_starts_total",
    ),
    (
        lambda log: log.without_wishes(A, CORE, ["GPU-0::1"]),
        "WARNING chosen without wishes | A resource=core ids=GPU-0::1",
        "unadvised_choices_total",
    ),
    (
        lambda log: log.podresources_unavailable("PodResources: UNAVAILABLE"),
        "WARNING List unavailable | reason=PodResources: UNAVAILABLE",
        "witness_failures_total",
    ),
]
USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@pytest.mark.parametrize(("act", "line", "metric"), LINES)
def test_a_decision_is_one_line_and_is_counted(
    act: Callable[[LoggedDecisions], None], line: str, metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    act(LoggedDecisions(metrics))
    (record,) = caplog.records
    fields = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in USUAL)
    fields = fields.replace("pod=default/a uid=uid-a container=main", "A")
    assert f"{record.levelname} {record.msg} | {fields}" == line
    assert f"gpu_turnstile_agent_{metric} 1.0\n" in metrics.render().decode()


def test_a_counter_is_zero_from_the_start() -> None:
    assert "gpu_turnstile_agent_corrections_total 0.0\n" in Metrics().render().decode()
    assert Metrics.content_type.startswith("text/plain; version=0.0.4")


def test_equal_refusals_are_logged_together_with_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A Deployment makes new pods for as long as the node refuses them."""
    clock, events, metrics = FakeClock(), list[tuple[str, str]](), Metrics()
    decision_log = LoggedDecisions(
        metrics,
        on_refusal=lambda _call, ref, reason: events.append((ref.pod.name, reason)),
        clock=clock,
    )
    unknown = ref("static", "", "kube-system")  # an event needs the UID of what it is about
    pods = [ref(f"a-{number}", f"uid-{number}") for number in range(1752)]
    for each in (*pods, ref("b", "uid-b", "elsewhere"), None, unknown):
        decision_log.refused("prefer", each, CORE, 50, "no card fits 50 cores")
    assert [name for name, _ in events] == ["a-0", "a-1", "a-2", "a-3", "a-4", "b"]
    clock.now += 10
    decision_log.tick()
    assert len(caplog.records) == 9
    last = vars(caplog.records[-1])
    assert (last["msg"], last["pod"], last["times"]) == ("refused", "default/a-1751", 1747)
    assert events[-1] == ("a-1751", "no card fits 50 cores (the last of 1747 such refusals)")
    counted = metrics.registry.get_sample_value(
        "gpu_turnstile_agent_refusals_total", {"call": "prefer", "resource": "core"}
    )
    assert counted == 1755


# --- repeated reports ---------------------------------------------------------------


def test_the_first_reports_pass_and_then_a_count() -> None:
    clock = FakeClock()
    repeats: RepeatFilter[int] = RepeatFilter(clock)
    assert [repeats.add("full", number) for number in range(8)] == [*[1] * 5, 0, 0, 0]
    clock.now += 9
    assert repeats.due() == []
    clock.now += 1
    assert repeats.add("full", 8) == 4
    assert repeats.add("full", 9) == 0
    clock.now += 10
    assert repeats.due() == [(1, 9)]
    assert repeats.due() == []
    clock.now += 49
    assert repeats.due() == []
    assert repeats.add("full", 10) == 1
    clock.now += 60
    assert repeats.due() == []  # counting starts again
    assert [repeats.add("full", number) for number in range(6)] == [*[1] * 5, 0]


def test_a_flood_of_kinds_is_bounded_too() -> None:
    """A reason may name another pod each time."""
    clock = FakeClock()
    repeats: RepeatFilter[int] = RepeatFilter(clock)
    assert sum(repeats.add(f"held by pod {number}", number) for number in range(1000)) == 64 + 5
    clock.now += 10
    assert repeats.due() == [(1000 - 64 - 5, 999)]


_kinds = st.sampled_from(["a", "a", "a", "b"])
_times = st.tuples(st.none(), st.integers(0, 70))
_steps = st.lists(st.tuples(_kinds, st.integers(0, 30)) | _times, min_size=9)


@given(steps=_steps)
def test_every_report_is_counted_in_the_end(steps: list[tuple[str | None, int]]) -> None:
    clock, came, reported = FakeClock(), Counter[str](), Counter[str]()
    repeats: RepeatFilter[str] = RepeatFilter(clock)
    for kind, seconds in steps:
        clock.now += seconds
        if kind is not None:
            came[kind] += 1
            reported[kind] += repeats.add(kind, kind)
        else:
            for count, kept_kind in repeats.due():
                reported[kept_kind] += count
    clock.now += 10
    for count, kept_kind in repeats.due():
        reported[kept_kind] += count
    assert reported == came
