"""Start, wait for, measure and end processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

WITHIN_S = 60.0
_CHECKOUT = Path(__file__).parents[1]
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")

Process = subprocess.Popen[bytes]


class ProcessFailed(Exception):
    """A process did not become ready, or failed; the message ends with its log."""


@contextmanager
def running(arguments: Sequence[str], log: Path) -> Iterator[Process]:
    """Run ``python -m`` with *arguments*; its standard input is a pipe of the caller's.

    Args:
        arguments: the module and its arguments.
        log: gets its output.

    Raises:
        ProcessFailed: the caller's block raised it; the log is added.
    """
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=_CHECKOUT,
        ) as process,
    ):
        try:
            yield process
        except ProcessFailed as error:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise ProcessFailed(f"{error}: {text[-2000:]}") from error
        finally:
            process.terminate()
            try:
                process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def wait(
    condition: Callable[[], bool],
    what: str,
    process: Process | None = None,
    *,
    within: float = WITHIN_S,
) -> None:
    """Wait until *condition* holds.

    Raises:
        ProcessFailed: *process* has exited, or the time is over.
    """
    began = time.monotonic()
    while not condition():
        if process is not None and process.poll() is not None:
            raise ProcessFailed(f"exited with status {process.returncode}")
        if time.monotonic() > began + within:
            raise ProcessFailed(f"not within {within:g} s: {what}")
        time.sleep(0.001)


def cpu_us(pid: int) -> float:
    """Return the CPU time of a process and its children, in microseconds."""
    ticks = 0
    for each in (pid, *children(pid)):
        # Fields 14 and 15 of proc(5), counted after the name, because it may have spaces.
        fields = Path(f"/proc/{each}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK_US


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> tuple[int, ...]:
    """Return the PIDs of a process's children."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return tuple(sorted(map(int, text.split())))
