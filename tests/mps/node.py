"""A node with the program that runs MPS daemons, on the stand-in for the driver's programs."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.enforcement.mps.backend import Mps
from agent.enforcement.mps.control import Control, environment
from agent.enforcement.mps.daemon import DaemonPace
from agent.enforcement.mps.files import DaemonStatus, MpsFolder
from agent.enforcement.mps.program import MpsProgram, MpsSettings
from agent.holdings.holding import ContainerRef
from tests.agent.builders import BLOCK, card

BLOCKS = 400
"""Memory of each card."""


STAND_IN = Path(__file__).with_name("stand_in.py")
PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-smi")


def install(driver_dir: Path) -> None:
    """Put the stand-ins where the driver's programs are looked for."""
    (driver_dir / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        path = driver_dir / "bin" / name
        shutil.copyfile(STAND_IN, path)
        path.chmod(0o755)


def eventually(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait until a condition is true, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)
    return found


class MpsNode:
    def __init__(self, folder: Path) -> None:
        self.root = folder / "mps"
        self.driver_dir = folder / "driver"
        self.switches = self.driver_dir / "switches"
        install(self.driver_dir)
        self.switches.mkdir()
        self.files = MpsFolder(self.root)
        self.response = 60.0
        self.names: dict[str, str] = {}  # of containers by their IDs
        self.clients: list[Client] = []
        self.lost: list[tuple[ContainerRef, str]] = []

    def agent(self, *bus_ids: str, cards: int = 4, patience: float = 120.0) -> Mps:
        """An agent of the node, with the PCI addresses of its cards as far as they are given."""
        addresses = (*bus_ids, *("" for _ in range(cards - len(bus_ids))))
        return Mps(
            self.root,
            block=BLOCK,
            cards=[
                replace(card(at, blocks=BLOCKS), bus_id=each) for at, each in enumerate(addresses)
            ],
            on_lost=lambda ref, why: self.lost.append((ref, why)),
            container_name=lambda _uid, container_id: self.names.get(container_id, ""),
            patience=patience,
        )

    @contextmanager
    def program(self, **flags: Any) -> Iterator[MpsProgram]:
        """Run the program until the end of the block."""
        settings = MpsSettings(dir=self.root, driver_dir=self.driver_dir, **flags)
        program = MpsProgram(settings, pace=DaemonPace(0.2, self.response))
        stop = threading.Event()
        thread = threading.Thread(target=program.run, args=(stop,))
        thread.start()
        try:
            yield program
        finally:
            stop.set()
            thread.join(120)

    def daemon(self, cards: str = "GPU-0") -> DaemonStatus:
        """The daemon of a set of cards as the agent sees it."""
        return (self.files.read_status() or {}).get(cards) or DaemonStatus(())

    def control(self, cards: str = "GPU-0") -> Control:
        pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(self.files.part(cards, "pipe"))}
        return Control(environment(self.driver_dir) | pipes, 60.0)

    def pid(self, cards: str = "GPU-0") -> int:
        return int(self.daemon(cards).instance.partition("-")[0])

    def client(self, envs: Mapping[str, str], cards: str = "GPU-0") -> "Client":
        """A process of a container with these variables: CUDA without them, too."""
        client = Client(self.files.part(cards, "pipe") / "control", envs)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for each in self.clients:
            each.end()


def report(files: MpsFolder, status: Mapping[str, DaemonStatus]) -> None:
    """Write a status as a program that runs does, until the end of this process."""
    files.root.mkdir(parents=True, exist_ok=True)
    assert files.lock.try_to_take()
    files.write_status(status)


class Client:
    """A CUDA program; *percent* and *memory* (MiB) are what it may use."""

    def __init__(self, control: Path, envs: Mapping[str, str]) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(str(control))
        share = envs.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
        limits = envs.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        self.socket.sendall(f"client {share} {limits}\n".encode())

    def connected(self) -> tuple[float, list[int]]:
        percent, *memory = self.socket.recv(65536).decode().split()
        return float(percent), [*map(int, memory)]

    def end(self) -> None:
        self.socket.close()
