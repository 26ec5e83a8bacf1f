"""A killed agent is started again in its container; an agent that exits is not."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.supervisor import QUICK_SECONDS, supervise
from tests.agent.fakes import DEADLINE_S, eventually

RUN = """
import sys
from agent import supervisor
from common.logs import configure
configure()
sys.exit(supervisor.supervise([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""
SERVE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
with open(sys.argv[1], "a") as started:
    print(os.getpid(), file=started)
signal.sigwait({signal.SIGTERM})
"""
CRASH = "kill -KILL $$"
CRASH_FOUR_TIMES = f'[ $(wc -l < "$0") -gt 4 ] || {CRASH}'


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    return tmp_path / "starts"


def command(script: str, starts: Path) -> list[str]:
    return ["sh", "-c", f'echo started >> "$0"; {script}', str(starts)]


def clock(seconds: float) -> Callable[[], float]:
    """Return a clock on which every run of the command takes so many seconds."""
    return itertools.count(step=seconds).__next__


@pytest.mark.slow
def test_a_killed_agent_is_started_again_and_ends_with_its_supervisor(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    with subprocess.Popen(
        [sys.executable, "-c", RUN, SERVE, pids], stderr=subprocess.PIPE, text=True
    ) as supervisor:
        eventually(lambda: pids.read_text().count("\n") == 1, "it runs")
        os.kill(int(pids.read_text()), signal.SIGKILL)
        eventually(lambda: pids.read_text().count("\n") == 2, "it runs again")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(DEADLINE_S) == 0
        assert supervisor.stderr is not None
        (line,) = (json.loads(each) for each in supervisor.stderr)
    assert (line["message"], line["how"]) == ("the agent has exited", "SIGKILL")
    assert line["level"] == "error"


@pytest.mark.parametrize("status", [0, 2])
def test_a_program_that_exits_is_not_restarted(starts: Path, status: int) -> None:
    assert supervise(command(f"exit {status}", starts)) == status
    assert starts.read_text() == "started\n"


def test_a_program_that_crashes_repeatedly_is_left_to_the_kubelet(
    starts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert supervise(command(CRASH, starts), clock=clock(QUICK_SECONDS - 0.5)) == 1
    assert caplog.messages == ["the agent has exited"] * 3


def test_a_program_that_ran_for_a_while_is_always_restarted(starts: Path) -> None:
    assert supervise(command(CRASH_FOUR_TIMES, starts), clock=clock(QUICK_SECONDS)) == 0
    assert starts.read_text() == "started\n" * 5


@pytest.mark.slow
def test_it_imports_nothing_of_the_agent() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, agent.supervisor; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {each for each in found if each.partition(".")[0] in {"agent", "common", "grpc"}}
    assert ours == {"agent", "agent.supervisor", "common", "common.logs"}
