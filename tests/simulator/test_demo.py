"""The demo as a user runs it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from simulator.cluster import reserve_port
from tests.agent.fakes import eventually

ROOT = Path(__file__).parents[2]
DEADLINE_S = 900.0
"""For 22 seconds of computing on a machine that has little time for them."""


def _demo(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulator", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)} | env,
    )


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for the demo's own, with a short path for its sockets; removed at the end."""
    short = Path("/tmp") / f"d{os.getpid()}"
    short.mkdir()
    try:
        yield short
    finally:
        shutil.rmtree(short)


@pytest.mark.timeout(2 * DEADLINE_S + 60)
@pytest.mark.parametrize(
    ("command", "number", "program"),
    [("demo", signal.SIGHUP, "agent-node-1"), ("page", signal.SIGTERM, "apiserver")],
)
def test_a_demo_that_is_cancelled_leaves_nothing_behind(
    command: str, number: signal.Signals, program: str
) -> None:
    """While it starts its programs: the last one is an agent, the first one the API server."""
    with _folder() as short, reserve_port() as port:
        arguments = (f"--port={port.getsockname()[1]}",) if command == "page" else ()
        demo = subprocess.Popen(
            [sys.executable, "-m", "simulator", command, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(short)},
        )
        eventually(
            lambda: list(short.glob(f"*/{program}.log")), f"{program} is started", within=DEADLINE_S
        )
        demo.send_signal(number)
        assert demo.wait(DEADLINE_S) == 128 + number
        assert list(short.iterdir()) == []
        # A killed process is there until the machine finds time to end it.
        eventually(lambda: not _processes_of(short), "no process is left")


def _processes_of(folder: Path) -> list[Path]:
    """Return the command lines of processes that name the folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            if str(folder).encode() in each.read_bytes():
                found.append(each)
    return found


@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_demo_shows_requests_allocations_and_the_calls_by_another_rule() -> None:
    """On forty lines at most."""
    with _folder() as short:
        # What is set for another agent must not reach this one.
        done = _demo("--pods", "10", "--clients", "4", folder=short, GPU_TURNSTILE_DOMAIN="no.such")
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(short.iterdir()) == []
    assert len(done.stdout.splitlines()) <= 40
    got = r"^share +main +50 cores, 8 blocks +(\w+) +card \d: 50 cores, 8 blocks *$"
    (share,) = re.findall(got, done.stdout, re.MULTILINE)
    assert f"\n  {share}: " in done.stdout, "each evidence is explained"
    halves = r"^two-halves +main +2 x \(50 cores, 8 blocks\) +\w+ +card \d: 50 cores, 8 blocks;"
    assert re.search(halves, done.stdout, re.MULTILINE)
    assert "more than one card must be a multiple of 100" in done.stdout
    assert "10 of 10 pods running" in done.stdout
    # Without the extender chance decides how many fail; with it none may.
    failed = r": (\d+) of 27 pods without the scheduler extender, 0 with it"
    assert int(re.findall(failed, done.stdout)[0]) > 0
    waits = r"^Pod default/wants-more-\d is pending: no card has 90 cores and 96 blocks free"
    assert re.search(waits, done.stdout, re.MULTILINE)
    assert "All checks passed" in done.stdout
    assert "make demo V=1" in done.stdout


def test_a_page_whose_port_is_in_use_fails_before_anything_is_started() -> None:
    """Such as by another page, whose /readyz responds like ours."""
    with _folder() as short, socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with _page(port, short) as page:
            assert page.wait(DEADLINE_S) == 1
            output = page.stdout.read() if page.stdout else ""
        assert list(short.iterdir()) == []
    (line,) = output.splitlines()
    advice = (
        r"stop the program that uses it, or choose another: \S+/python -m simulator page --port \d+"
    )
    assert re.fullmatch(rf"error: port {port}: Address already in use: {advice}", line)


@pytest.mark.timeout(2 * DEADLINE_S)
def test_make_page_prints_how_to_use_kubectl_and_ends_with_any_of_its_programs() -> None:
    with (
        _folder() as short,
        reserve_port() as port,
        _page(port.getsockname()[1], short) as page,
    ):
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
        explained = subprocess.run(
            command, shell=True, capture_output=True, text=True, timeout=DEADLINE_S, check=True
        )
        assert re.match(
            r"Pod default/wants-more-\d is pending: no card has 90 cores", explained.stdout
        )
        os.kill(_child(page.pid, "serve"), signal.SIGTERM)
        assert page.wait(DEADLINE_S) == 1
        assert "error: view died" in page.stdout.read()
        assert list(short.iterdir()) == []


@contextmanager
def _page(port: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    page = subprocess.Popen(
        [sys.executable, "-m", "simulator", "page", f"--port={port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    with page:
        try:
            yield page
        finally:
            page.terminate()


def _child(parent: int, argument: str) -> int:
    """The one process that another has started with an argument."""
    (found,) = (
        int(each)
        for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if argument.encode() in Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
    )
    return found


def test_a_folder_without_examples_is_one_clear_line(tmp_path: Path) -> None:
    done = _demo("--examples", str(tmp_path), folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path}: no *.yaml files there\n"
