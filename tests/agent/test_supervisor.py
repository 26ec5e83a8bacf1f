"""An agent that dies is started again in its container; one that ends, ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.fakes import DEADLINE_S, eventually

pytestmark = pytest.mark.slow

KEEP = """
import sys
from agent import supervisor
from common.logs import configure
configure()
sys.exit(supervisor.supervise([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""
SERVE = """
import os, signal, sys
with open(sys.argv[1], "a") as told:
    print(os.getpid(), file=told)
signal.sigwait({signal.SIGTERM})
"""


@contextmanager
def _supervised(folder: Path, program: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", KEEP, program, folder / "pids"], stderr=subprocess.PIPE, text=True
    ) as process:
        yield process


def _pids(folder: Path) -> list[str]:
    path = folder / "pids"
    return path.read_text().split() if path.exists() else []


def test_a_killed_agent_is_started_again_and_ends_with_its_supervisor(tmp_path: Path) -> None:
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    with _supervised(tmp_path, blocked + SERVE) as supervisor:
        eventually(lambda: len(_pids(tmp_path)) == 1, "it runs")
        subprocess.run(["kill", "-KILL", *_pids(tmp_path)], check=True)
        eventually(lambda: len(_pids(tmp_path)) == 2, "it runs again")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(DEADLINE_S) == 0
        assert supervisor.stderr is not None
        (line,) = (json.loads(each) for each in supervisor.stderr)
    assert (line["message"], line["how"]) == ("the agent has exited", "SIGKILL")
    assert line["level"] == "error"


@pytest.mark.parametrize("status", [0, 2])
def test_a_program_that_exits_is_not_restarted(tmp_path: Path, status: int) -> None:
    with _supervised(tmp_path, f"import sys; sys.exit({status})") as supervisor:
        assert supervisor.wait(DEADLINE_S) == status


def test_a_program_that_crashes_repeatedly_is_left_to_the_kubelet(tmp_path: Path) -> None:
    with _supervised(
        tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    ) as supervisor:
        assert supervisor.wait(DEADLINE_S) == 1
        assert supervisor.stderr is not None
        assert len(supervisor.stderr.readlines()) == 3


def test_it_imports_nothing_of_what_it_keeps() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys, agent.supervisor; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    ours = {each for each in found if each.partition(".")[0] in {"agent", "common", "grpc"}}
    assert ours == {"agent", "agent.supervisor", "common", "common.logs"}
