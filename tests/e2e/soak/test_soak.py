"""What a soak makes of figures, failed pods and logs; runs with the unit tests."""

import json
from pathlib import Path

import pytest

from tests.e2e.soak.failures import KUBELET, PROXY, Disturbance, Failure, words_of
from tests.e2e.soak.logs import NodeLogs
from tests.e2e.soak.readings import Reading, longest_series, total, trend
from tests.e2e.soak.report import figures


def _series(*values: float, instance: str = "1") -> list[Reading]:
    return [
        Reading("agent", "RSS", instance, at * 360.0, at * 500, value)
        for at, value in enumerate(values)
    ]


def test_a_trend_is_by_hour_and_by_1000_pods() -> None:
    grown = trend(_series(10, 12, 14, 16))
    assert grown is not None
    assert (grown.first, grown.middle, grown.last) == (10, 14, 16)
    assert grown.hourly == pytest.approx(20)
    assert grown.by_pods == pytest.approx(4)
    assert grown.error == pytest.approx(0)
    assert grown.minutes == 18
    assert trend(_series(10, 12)) is None


def test_a_trend_of_noise_has_a_large_error() -> None:
    grown = trend(_series(10, 12, 12, 10))
    assert grown is not None
    assert grown.hourly == pytest.approx(0)
    assert grown.error > 3


def test_the_longest_instance_counts_without_its_first_reading() -> None:
    readings = _series(50, 10, 11, 12, instance="long") + _series(1, 2, instance="short")
    assert [each.value for each in longest_series(readings)] == [10, 11, 12]
    assert longest_series([]) == []


def test_figures_are_those_of_a_phase() -> None:
    rows = figures(_series(99, 1, 2, 3, 4, 99), {"calm": (1, 1600)})
    assert [row[:6] for row in rows] == [("agent", "RSS", "calm", "2", "3", "4")]


@pytest.mark.parametrize(
    ("words", "kind", "explained"),
    [
        ("StartError failed to create shim task: signal: killed", KUBELET, True),
        ("StartError failed to create shim task: signal: killed", PROXY, False),
        ("Allocate failed due to no healthy devices present", KUBELET, True),
        ("rpc error: desc = gpu-turnstile: no agent, no healthy devices present", KUBELET, False),
        ("OOMKilled", KUBELET, False),
    ],
)
def test_a_failure_is_explained_by_some_disturbances(
    words: str, kind: str, *, explained: bool
) -> None:
    done = [Disturbance("it", frozenset({kind}), 100, 110)]
    assert (Failure("pod", words, 95, 104).explanation(done) is not None) is explained


def test_a_disturbance_explains_only_failures_of_its_time() -> None:
    done = [Disturbance("restart", frozenset({KUBELET}), 100, 110)]
    cut = "context canceled"
    assert Failure("before", cut, 80, 99).explanation(done) is None
    assert Failure("meanwhile", cut, 80, 101).explanation(done) == "restart"
    assert Failure("soon after", cut, 139, 150).explanation(done) == "restart"
    assert Failure("after", cut, 141, 150).explanation(done) is None


def test_words_are_those_of_pod_and_containers() -> None:
    ended = {"terminated": {"reason": "StartError", "exitCode": 128, "message": "no shim"}}
    done = {"terminated": {"reason": "Completed", "exitCode": 0}}
    status = {"containerStatuses": [{"name": "a", "state": ended}, {"name": "b", "state": done}]}
    assert words_of({"status": status}) == "a: StartError 128 no shim"


def test_metrics_are_added_up() -> None:
    text = '# HELP free x\nfree{card="a"} 5\nfree{card="b"} 7.5\nfree_bytes{card="a"} 9\n'
    assert total(text, "free") == 12.5


def test_logs_are_read_once_and_as_they_grow(tmp_path: Path) -> None:
    folder = tmp_path / "ours_agent-x_1" / "agent"
    folder.mkdir(parents=True)
    log = folder / "0.log"
    logs = NodeLogs("ours", folder=tmp_path)

    def line(**fields: str) -> str:
        return f"2026-01-01T00:00:00Z stderr F {json.dumps(fields)}\n"

    warning = line(level="warning", message="refused", reason="pod 12 of 7")
    log.write_text(warning + line(level="info", message="served") + warning[:40])
    logs.read()
    logs.read()
    assert dict(logs.counts) == {("agent", "warning", "refused"): 1}
    log.write_text(log.read_text() + warning[40:] + line(level="error", exception="Traceback"))
    logs.read()
    assert logs.counts["agent", "warning", "refused"] == 2
    assert logs.reasons["agent", "refused", "pod N of N"] == 2
    assert logs.counts["agent", "error", "stack trace"] == 1
    assert len(logs.traces) == 1
