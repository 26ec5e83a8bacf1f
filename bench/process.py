"""Processes that are measured: started, waited for, watched and ended."""

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
    """A process did not come up, or does not do what it should; ends with its log."""


@contextmanager
def running(
    arguments: Sequence[str],
    log: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    end: signal.Signals = signal.SIGTERM,
) -> Iterator[Process]:
    """Run ``python -m`` with *arguments*; its standard input is the caller's.

    Args:
        arguments: the module and what it is told.
        log: gets what it says.
        variables: further ones.
        end: the signal that ends it, if it still runs.

    Raises:
        ProcessFailed: what was done with it has failed.
    """
    with (
        log.open("wb") as said,
        subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
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
        ProcessFailed: *process* has died, or it does not come to hold.
    """
    began = time.monotonic()
    while not condition():
        if process is not None and process.poll() is not None:
            raise ProcessFailed(f"it has died with status {process.returncode}")
        if time.monotonic() > began + within:
            raise ProcessFailed(f"not within {within:g} s: {what}")
        time.sleep(0.001)


def cpu_us(pid: int) -> float:
    """Return the time on the processor of a process and its children, in microseconds."""
    ticks = 0
    for each in (pid, *children(pid)):
        # Fields 14 and 15 of proc(5), counted from behind the name, which may have spaces.
        fields = Path(f"/proc/{each}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK_US


def cpu_percent(pid: int, seconds: float) -> float:
    """Watch how much of a core a process and its children use."""
    before, began = cpu_us(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_us(pid) - before) / 1e4 / (time.monotonic() - began)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> tuple[int, ...]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return tuple(sorted(map(int, text.split())))


def compile_library(source: Path, built: Path) -> None:
    """Compile a stand-in for a library of a driver.

    Raises:
        ProcessFailed: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ProcessFailed("there is no C compiler for the stand-in of a driver")
    flags = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(built))
    subprocess.run([compiler, *flags, str(source)], check=True, timeout=100)  # noqa: S603 - cc
