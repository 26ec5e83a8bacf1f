"""What holds for every test."""

import gc
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from certs.issue import issue
from certs.names import parse_subject
from tests.measuring import Measuring
from tests.rbac.grants import never_granted, read
from tests.rbac.recording import Recording

# Machines that run tests are noisy: how long an example takes says nothing about the code.
NOISY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("all", NOISY, max_examples=60)
settings.register_profile("fast", NOISY, max_examples=10)
settings.load_profile("all")
FAST = "not slow"
"""The mark expression of ``make test-fast``."""


TESTS = Path(__file__).parent

# Coverage is what the tests of the modules reach, and measuring it doubles the time of a test.
# Whole nodes run every module at once; manifests and images run none, nor do documents.
WHOLE = (
    *(TESTS / each for each in ("adversary", "bench", "deploy", "e2e")),
    *(TESTS / each for each in ("image", "runtime", "simulator", "situations")),
)
READ = ("test_architecture.py", "test_docs.py", "test_readme.py", "release")
UNMEASURED = (*WHOLE, *(TESTS / each for each in READ))
SLOW = (*WHOLE, TESTS / "rbac" / "test_requests.py", TESTS / "scheduler" / "test_server.py")
SLOW_FIXTURES = {"folder", "kubelet", "server"}
"""Sockets: ``folder`` is the one with a path short enough for them."""
_unmeasured: set[pytest.Item] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many tests run side by side: slow ones wait for half of their time."""
    cores = os.cpu_count() or 1
    return max(2, cores if config.option.markexpr == FAST else cores * 2)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples of each property where ``make test`` follows; collect garbage less often.

    Python's default is after 700 new objects, which are hardly ever garbage in cycles.
    """
    gc.set_threshold(20_000)
    config.pluginmanager.register(Measuring(_unmeasured))
    if config.option.markexpr == FAST:
        settings.load_profile("fast")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what ``make test-fast`` leaves out."""
    left_out = collection_path in SLOW and config.option.markexpr == FAST
    return True if left_out else None


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark what is slow, and what is left out of the coverage.

    Properties are left out as well: a hundred examples reach what the examples beside them reach.
    """
    unmeasured, slow = (_in(folders) for folders in (UNMEASURED, SLOW))
    for item in items:
        path, function = str(item.path), getattr(item, "obj", None)
        if path.startswith(unmeasured) or is_hypothesis_test(function):
            _unmeasured.add(item)
        sockets = SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if path.startswith(slow) or sockets or item.name == "runTest":  # of a state machine
            item.add_marker("slow")


def _in(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(str(each) if each.suffix else f"{each}{os.sep}" for each in paths)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what stays until the end: modules and 5,000 tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as ``python -m certs issue`` leaves it, for localhost."""
    directory = tmp_path_factory.mktemp("certificates")
    subject = parse_subject(["localhost"], ["127.0.0.1"], 1)
    issue(subject, now=datetime.now(UTC)).write(directory)
    return directory


@pytest.fixture(scope="session")
def requests_to_api_servers() -> Iterator[Recording]:
    """The requests of our programs to simulated API servers."""
    recording = Recording()
    with pytest.MonkeyPatch.context() as patch:
        recording.install(patch)
        yield recording


@pytest.fixture(autouse=True)
def the_root_logger_as_before() -> Iterator[None]:
    """A program's command line that runs in this process configures the log of the process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    if root.handlers != handlers:
        root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def every_request_is_granted_by_a_role(requests_to_api_servers: Recording) -> Iterator[None]:
    """Check that roles in deploy/ allow every request of a test; tests/rbac has more."""
    yield
    found = requests_to_api_servers.take()
    if found:
        lines = [
            f"deploy/ does not grant python -m {program}: {each}"
            for program, requests in sorted(found.items())
            for each in never_granted(program, requests, read())
        ]
        if lines:
            pytest.fail("\n".join(lines), pytrace=False)
