"""Limits by the driver's own MPS daemon, which our program runs and our enforcer describes."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agent.enforcement.mps.backend import Mps
from agent.enforcement.mps.control import PROGRAM
from agent.enforcement.mps.program import MpsProgram, MpsSettings
from agent.errors import EnforcementError
from agent.holdings.edits import ContainerEdits
from bench.gpu.confined import NotHere, ProgramFailed
from bench.gpu.limits import BLOCK, LimitedContainer
from bench.gpu.table import Row, near, row
from contract.inventory import Card

_CORES = 25, 60
_BLOCKS = 8, 16
_SPIN = ("-m", "bench.gpu.load", "--memory=268435456", "--duty=0.9", "--seconds=20")
_COUNT = ("-c", "from bench.gpu.cuda import Cuda; print(Cuda().multiprocessors())")
_WITHIN = 3.0


def check(card: Card) -> list[Row]:
    """Check a share of 25 % and 2 GiB beside one of 60 % and 4 GiB, whose kernel spins.

    Raises:
        NotHere: the driver's program is not installed.
        ProgramFailed: the daemon does not serve, or a client failed.
    """
    if shutil.which(PROGRAM) is None:
        raise NotHere(f"{PROGRAM} is not installed")
    all_sms = int(_run({}, *_COUNT))
    with tempfile.TemporaryDirectory() as folder, _daemons(Path(folder)):
        mps = Mps(Path(folder), block=BLOCK, cards=[card], patience=30)
        small, large = (
            LimitedContainer(cores, {card: blocks})
            for cores, blocks in zip(_CORES, _BLOCKS, strict=True)
        )
        try:
            own, other = (_variables(mps, each, card, Path(folder)) for each in (small, large))
        except EnforcementError as error:
            raise ProgramFailed(str(error)) from error
        with subprocess.Popen(  # noqa: S603 -- ourselves
            [sys.executable, *_SPIN], env=os.environ | other, stdout=subprocess.DEVNULL
        ) as spinning:
            sms = [int(_run(each, *_COUNT)) for each in (own, other)]
            (alone,) = small.run(ContainerEdits(), own)
            both = _two(small, own)
            spinning.kill()
    refused = "half given, all refused"
    rows = [
        near(f"SMs of a share of {cores}", all_sms * cores / 100, found, _WITHIN, "SMs")
        for cores, found in zip(_CORES, sms, strict=True)
    ]
    each = "the limits hold for each process"
    return [
        *rows,
        row("2 GiB by MPS, beside a kernel that spins", refused, alone, right=refused in alone),
        row("two processes of it", each, "; ".join(both), right=all(refused in x for x in both)),
    ]


@contextmanager
def _daemons(folder: Path) -> Iterator[None]:
    program, stop = MpsProgram(MpsSettings(dir=folder)), threading.Event()
    thread = threading.Thread(target=program.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _variables(mps: Mps, container: LimitedContainer, card: Card, folder: Path) -> dict[str, str]:
    """Return the container's variables, with the folder of the daemon on this machine."""
    edits = mps.prepare_allocation(container.holding)
    mps.prepare_start(container.holding)
    return {**edits.envs, "CUDA_MPS_PIPE_DIRECTORY": str(folder / card.uuid / "pipe")}


def _two(container: LimitedContainer, variables: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(container.run(ContainerEdits(), variables)))
        for _ in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def _run(variables: Mapping[str, str], *arguments: str) -> str:
    ended = subprocess.run(  # noqa: S603 -- ourselves
        [sys.executable, *arguments],
        env=os.environ | dict(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise ProgramFailed((ended.stderr.strip() or "no message").splitlines()[-1])
    return ended.stdout
