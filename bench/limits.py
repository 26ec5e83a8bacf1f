"""Limits as programs meet them: our enforcers, the libraries that they count on, and a driver.

A container is given what the agent would answer for it, and a program in it
(:mod:`bench.gpu.share`) says what it is told of each card and what it is given. The driver is the
machine's, or a stand-in (``stand_in_driver.c``) that is compiled here.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agent.allocator.grants import (
    CardGrant,
    ContainerEdits,
    Entitlement,
    Grant,
)
from agent.allocator.interfaces import ContainerRef
from agent.driver.folder import DriverFolder
from agent.driver.layout import CLIENT, CONTROL, Found, Source, choose
from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.enforcement.vcuda.backend import Vcuda
from agent.enforcement.vcuda.ports import Hardware
from agent.injection.inject import DriverFiles
from agent.runtime.cgroups import ContainerCgroup
from agent.runtime.cri import ContainerInfo
from bench import confined
from contract.demand import CORES_PER_CARD
from contract.inventory import Card
from contract.resource import Resource
from placement.pods import PodId

_MIB = 1 << 20
_BLOCK = 256
_REF = ContainerRef(PodId("default", "limits", "11111111-2222-4333-8444-555555555555"), "main")
_VERSION = "535.104.05"
_TOLD = re.compile(r"[0-9a-fA-F:.]+: .* MiB, |busy [0-9]+%$")
_READ = re.compile(
    r" (core utilization limit|limit|total utilization|hard limit mode|enable mode)"
    r" *[:=] ([0-9]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Container:
    """A container that asks for so many *cores* and *blocks* of memory of each card.

    Its program launches kernels of *spin* blocks; 0 is none. The libraries count blocks.
    """

    cores: int
    blocks: Mapping[Card, int]
    core_limit: int | None = None
    spin: int = 0

    @cached_property
    def entitlement(self) -> Entitlement:
        """What it may use by the agent's record."""
        ids = {f"{card.uuid}::{place}" for card in self.blocks for place in range(self.cores)}
        cores = Grant(
            Resource.CORE, tuple(CardGrant(card.uuid, self.cores) for card in self.blocks)
        )
        memory = None if self.cores >= CORES_PER_CARD else self.memory
        return Entitlement(_REF, frozenset(ids), cores, memory, self.core_limit)

    @property
    def memory(self) -> Grant:
        """What its blocks of memory stand for."""
        shares = (CardGrant(card.uuid, blocks) for card, blocks in self.blocks.items())
        return Grant(Resource.MEMORY, tuple(shares))

    def run(
        self, answer: ContainerEdits, variables: Mapping[str, str], before: str = ":"
    ) -> list[str]:
        """Run the program with an answer; return what it says, and what a library has read.

        Raises:
            ProgramFailed: it did not end well.
        """
        by_bus = sorted(self.blocks.items(), key=lambda each: each[0].bus_id)
        shares = [str(blocks * _BLOCK) for _, blocks in by_bus]
        command = [sys.executable, "-m", "bench.gpu.share", str(self.spin), *shares]
        here = {"PYTHONPATH": str(Path(__file__).parents[1])}
        output, errors = confined.run(answer, command, here | dict(variables), before=before)
        told = [each for each in output.splitlines() if _TOLD.match(each)]
        return told + list(dict.fromkeys(" ".join(each) for each in _READ.findall(errors)))


Limit = Callable[[Container, Path, Path, Mapping[str, str]], list[str]]
"""Limits a container by a library in a folder; another folder and variables are for it to use."""


def compile_library(source: Path, built: Path) -> None:
    """Compile a stand-in for a library of a driver.

    Raises:
        NotHere: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise confined.NotHere("there is no C compiler for the stand-in of a driver")
    flags = ("-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(built))
    subprocess.run([compiler, *flags, str(source)], check=True, timeout=100)  # noqa: S603 - cc


def build_driver(folder: Path) -> None:
    """Compile the stand-in for a driver into *folder*, under the names of its two libraries.

    Raises:
        NotHere: there is no C compiler.
    """
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        built = folder / f"{name}.{_VERSION}"
        compile_library(Path(__file__).with_name("stand_in_driver.c"), built)
        (folder / f"{name}.1").symlink_to(built)


def stand_in(folder: Path, cards: Iterable[Card]) -> dict[str, str]:
    """Compile the stand-in into *folder*; return the variables by which it has these cards.

    Raises:
        NotHere: there is no C compiler.
    """
    build_driver(folder / "driver")
    sizes = [str(card.memory // _MIB) for card in sorted(cards, key=lambda card: card.bus_id)]
    return {
        "LD_LIBRARY_PATH": str(folder / "driver"),
        "STAND_IN_CARDS": " ".join(sizes),
        "STAND_IN_STATE": str(folder / "held"),
    }


def hami(
    container: Container, library: Path, folder: Path, variables: Mapping[str, str]
) -> list[str]:
    """Limit a container, or one that is guessed, by HAMi-core's library in the folder *library*.

    Raises:
        ProgramFailed: the program did not end well.
    """
    enforcer = HamiCore(
        state_dir=folder / "state",
        library=HamiLibrary(library, on_outdated=lambda _: None),
        block=_BLOCK * _MIB,
        cards=tuple(container.blocks),
    )
    enforcer.open()
    held = container.entitlement
    answer = enforcer.prepare_allocation(held.ref, held.core_ids, held.cores).merged_with(
        enforcer.prepare_allocation(held.ref, frozenset(), container.memory)
    )
    enforcer.prepare_start(held.core_ids, held)
    return container.run(answer, {"LIBCUDA_LOG_LEVEL": "3"} | dict(variables))


def vcuda(
    container: Container, library: Path, folder: Path, variables: Mapping[str, str]
) -> list[str]:
    """Limit a container by vcuda-controller's files in *library*, before a stand-in in *folder*.

    Raises:
        ProgramFailed: the program did not end well.
    """
    node, results, held = _Node(), list[str](), container.entitlement
    bus_ids = {card.uuid: card.bus_id for card in container.blocks}
    enforcer = Vcuda(
        state_dir=folder / "state",
        processes=node,
        runtime=node,
        entitled=lambda _uid, _name: held,
        hardware=Hardware(bus_ids.__getitem__, lambda: _VERSION, _BLOCK * _MIB),
        on_result=results.append,
    )
    enforcer.open()
    with contextlib.closing(enforcer):
        answer = enforcer.prepare_allocation(held.ref, held.core_ids, held.cores)
        enforcer.prepare_start(held.core_ids, held)
        # The library asks the kernel for the driver's version.
        proc = "/proc/driver/nvidia"
        tell = (
            f"mount -t tmpfs none /proc/driver; mkdir {proc}; echo NVRM {_VERSION} >{proc}/version"
        )
        found = container.run(
            answer.merged_with(_lay_out(library, folder).answer()),
            {"LOGGER_LEVEL": "4"} | dict(variables),
            tell,
        )
    return found + results


def _lay_out(library: Path, folder: Path) -> DriverFiles:
    """Lay out the driver's files and vcuda-controller's as ``--driver-dir auto`` does."""
    found = []
    for at, path in (
        ("lib64", folder / "driver" / "libcuda.so.1"),
        ("lib64", folder / "driver" / "libnvidia-ml.so.1"),
        ("lib64", library / CONTROL),
        ("bin", library / CLIENT),
    ):
        real, status = path.resolve(), path.stat()
        source = Source(str(real), status.st_size, status.st_mtime_ns, status.st_ino)
        found.append(Found(at, path.name, source))
    link = folder / "state" / "driver" / "current"
    layout = choose(found, module=_VERSION, vcuda=True)
    DriverFolder(link).lay_out(layout, lambda source: os.open(source.path, os.O_RDONLY))
    return DriverFiles(str(link.resolve()))


class _Node:
    """The word of kernel and container runtime: the peer's session is the container."""

    _session = 0

    def container_of(self, pid: int, /) -> ContainerCgroup:
        self._session = os.getsid(pid)
        return ContainerCgroup("c" * 64, _REF.pod.uid, ())

    def pids_of(self, _: ContainerCgroup, /) -> list[int]:
        return [pid for pid, session in _sessions() if session == self._session]

    def container(self, _: str, *, within: float) -> ContainerInfo:  # noqa: ARG002 -- Runtime's
        return ContainerInfo(_REF.container, _REF.pod.uid, ended=False)

    def succeeded(self, _: str, *, within: float) -> tuple[str, ...]:  # noqa: ARG002 -- Runtime's
        return ()


def _sessions() -> Iterator[tuple[int, int]]:
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError):
            yield int(each.name), os.getsid(int(each.name))
