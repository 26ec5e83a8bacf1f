"""Start, wait for, measure and end processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

WITHIN_S = 60.0
_CHECKOUT = Path(__file__).parents[1]
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")

Process = subprocess.Popen[bytes]


class ProcessFailed(Exception):
    """A process did not become ready, or failed; the message ends with its log."""


@contextmanager
def running(
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    end: signal.Signals = signal.SIGTERM,
) -> Iterator[Process]:
    """Run ``python -m`` with *arguments*; its standard input is a pipe of the caller's.

    Args:
        arguments: the module and its arguments.
        log: gets its output.
        variables: further environment variables.
        end: the signal that ends it, if it still runs.

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
            env=os.environ | dict(variables),
        ) as process,
    ):
        try:
            yield process
        except ProcessFailed as error:
            text = log.read_text(encoding="utf-8", errors="replace")
            raise ProcessFailed(f"{error}: {text[-2000:]}") from error
        finally:
            process.send_signal(end)
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


def cpu_percent(pid: int, seconds: float) -> float:
    """Measure for *seconds* how many percent of a core a process and its children use."""
    before, began = cpu_us(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_us(pid) - before) / 1e4 / (time.monotonic() - began)


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


def compile_library(source: Path, built: Path) -> None:
    """Compile a stand-in for a driver's library.

    Raises:
        ProcessFailed: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ProcessFailed("no C compiler (cc or gcc) for the stand-in of a driver's library")
    flags = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(built))
    subprocess.run([compiler, *flags, str(source)], check=True, timeout=100)  # noqa: S603 - cc
