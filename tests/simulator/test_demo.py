"""The demo as a user runs it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from simulator.cluster import reserve_port
from tests.agent.fakes import eventually, short_dir

ROOT = Path(__file__).parents[2]
DEADLINE_S = 900.0
"""For 22 seconds of computing on a machine that has little time for them."""
pytestmark = pytest.mark.timeout(2 * DEADLINE_S + 60)


@contextmanager
def _simulator(*arguments: str, folder: Path, **env: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the demo or the page with its folder in *folder*; end it, if it has not ended."""
    program = subprocess.Popen(
        [sys.executable, "-m", "simulator", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)} | env,
    )
    with program:
        try:
            yield program
        finally:
            program.terminate()  # it ends all its programs


@pytest.mark.parametrize(
    ("command", "number", "program"),
    [("demo", signal.SIGHUP, "agent-node-1"), ("page", signal.SIGTERM, "apiserver")],
)
def test_a_demo_that_is_cancelled_leaves_nothing_behind(
    command: str, number: signal.Signals, program: str
) -> None:
    """While it starts its programs: the last one is an agent, the first one the API server."""
    with short_dir() as short, reserve_port() as port:
        arguments = (f"--port={port.getsockname()[1]}",) if command == "page" else ()
        with _simulator(command, *arguments, folder=short) as demo:
            eventually(
                lambda: list(short.glob(f"*/{program}.log")),
                f"{program} is started",
                within=DEADLINE_S,
            )
            demo.send_signal(number)
            assert demo.wait(DEADLINE_S) == 128 + number
        assert list(short.iterdir()) == []
        # A killed process exists until the machine finds time to end it.
        eventually(lambda: not _processes_of(short), "no process is left")


def _processes_of(folder: Path) -> list[Path]:
    """Return the command lines of processes that name the folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if str(folder).encode() in each.read_bytes():
                found.append(each)
    return found


def test_the_demo_shows_requests_allocations_and_the_calls_by_another_rule() -> None:
    """On forty lines at most."""
    # What is set for another agent must not reach this one.
    env = {"GPU_TURNSTILE_DOMAIN": "no.such"}
    with short_dir() as short:
        with _simulator("demo", "--pods=10", "--clients=4", folder=short, **env) as demo:
            shown, _ = demo.communicate(timeout=DEADLINE_S)
        assert demo.returncode == 0, shown
        assert list(short.iterdir()) == []
    assert len(shown.splitlines()) <= 40
    got = r"^share +main +50 cores, 8 blocks +(\w+) +card \d: 50 cores, 8 blocks *$"
    (share,) = re.findall(got, shown, re.MULTILINE)
    assert f"\n  {share}: " in shown, "each evidence is explained"
    halves = r"^two-halves +main +2 x \(50 cores, 8 blocks\) +\w+ +card \d: 50 cores, 8 blocks;"
    assert re.search(halves, shown, re.MULTILINE)
    assert "more than one card must be a multiple of 100" in shown
    assert "10 of 10 pods running" in shown
    # Without the extender chance decides how many fail; with it none may.
    failed = r": (\d+) of 27 pods without the scheduler extender, 0 with it"
    assert int(re.findall(failed, shown)[0]) > 0
    waits = r"^Pod default/wants-more-\d is pending: no card has 90 cores and 96 blocks free"
    assert re.search(waits, shown, re.MULTILINE)
    assert "All checks passed" in shown
    assert "make demo V=1" in shown


def test_make_page_prints_how_to_use_kubectl_and_ends_with_any_of_its_programs() -> None:
    with short_dir() as short, reserve_port() as port:
        option = f"--port={port.getsockname()[1]}"
        with _simulator("page", option, folder=short) as page:
            assert page.stdout
            command, cards = "", 0
            for line in page.stdout:
                cards += bool(re.match("node-[1-4] +4x Simulated A30 +Available", line))
                found = re.fullmatch(r"In another terminal: (KUBECONFIG=.* explain .*)\n", line)
                if found:
                    command = found[1]
                    break
            assert command
            assert cards == 4, "what kubectl gpu shows of them"
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, timeout=DEADLINE_S, check=True
            )
            pending = r"Pod default/wants-more-\d is pending: no card has 90 cores"
            assert re.match(pending, done.stdout)
            os.kill(_child(page.pid, "serve"), signal.SIGTERM)
            assert page.wait(DEADLINE_S) == 1
            assert "error: view died" in page.stdout.read()
        assert list(short.iterdir()) == []


def _child(parent: int, argument: str) -> int:
    """Return the one process that another has started with an argument."""
    (found,) = (
        int(each)
        for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if argument.encode() in Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
    )
    return found
