"""Right across workers: each is a process of its own, as it is in the server."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from webhook.metrics import Metrics

PREFIX = "gpu_turnstile_webhook_"

WORKER = """
import sys
from pathlib import Path
from common.serving.tls import Change
from webhook.metrics import Metrics, share

directory, place, reviews = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
share(directory, place)
metrics = Metrics(directory)
for _ in range(reviews):
    metrics.reviewed("/mutate/pods", "denied", ("b", "a"), 0.0002)
metrics.in_flight(1)
metrics.connected(2)
metrics.ended("body-timeout")
metrics.certificate(Change.REFUSED, 1000.0 + place)
if place:
    metrics.certificate(Change.LOADED, 1000.0 + place)
metrics.refused(404)
print(metrics.render().decode())
"""


def _worker(directory: Path, place: int, reviews: int) -> dict[str, float]:
    command = [sys.executable, "-c", WORKER, str(directory), str(place), str(reviews)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return _samples(done.stdout)


def _samples(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, _, value in lines if name}


def test_any_worker_shows_what_all_have_counted(tmp_path: Path) -> None:
    _worker(tmp_path, 0, 2)
    found = _worker(tmp_path, 1, 3)
    assert found['reviews_total{route="/mutate/pods",rule="b",verdict="denied"}'] == 5
    assert found['findings_total{route="/mutate/pods",rule="a"}'] == 5
    assert found['review_duration_seconds_count{route="/mutate/pods"}'] == 5
    assert found['review_duration_seconds_bucket{le="0.00025",route="/mutate/pods"}'] == 5
    assert found['review_duration_seconds_bucket{le="0.0001",route="/mutate/pods"}'] == 0
    assert found["requests_in_flight"] == 2
    assert found["connections"] == 4
    assert found['connections_ended_total{reason="body-timeout"}'] == 2
    assert found["certificate_expiry_timestamp_seconds"] == 1000
    assert found['certificate_reloads_total{result="loaded"}'] == 1
    assert found['certificate_reloads_total{result="refused"}'] == 2
    assert found['refusals_total{status="404"}'] == 2


def test_who_takes_the_place_of_a_dead_worker_counts_on_and_has_nothing_open(
    tmp_path: Path,
) -> None:
    _worker(tmp_path, 0, 2)
    files = sorted(path.name for path in tmp_path.iterdir())
    found = _worker(tmp_path, 0, 3)
    assert found['reviews_total{route="/mutate/pods",rule="b",verdict="denied"}'] == 5
    assert found["requests_in_flight"] == 1
    assert found["connections"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_a_worker_that_is_starting_fails_no_scrape(tmp_path: Path) -> None:
    """The library makes a file empty, and fills it a moment later."""
    for name in ("counter_1.db", "gauge_sum_1.db"):
        (tmp_path / name).touch()
    found = _worker(tmp_path, 0, 2)
    assert found["connections"] == 2


def test_a_copy_of_the_source_that_was_never_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("common.metrics.version", _not_installed)
    assert 'version="unknown"' in Metrics().render().decode()


def _not_installed(name: str) -> str:
    raise PackageNotFoundError(name)
