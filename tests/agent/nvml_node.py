"""A node whose NVML is ours: the stand-in library of ``nvml_stub/``, and the script it plays."""

import atexit
import ctypes
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).parent / "nvml_stub" / "nvml_stub.c"
LIBRARY = "libnvidia-ml.so.1"
XID, ECC, MIG_CHANGE = 8, 2, 0x100
"""Types of events."""
GIB = 1 << 30
_copies = itertools.count()


@cache
def build(*, old: bool = False) -> Path:
    """Compile the stand-in; gives the folder it is in."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    folder = Path(tempfile.mkdtemp(prefix="gt-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]
    defines = ["-DOLD_DRIVER"] if old else []
    subprocess.run(
        [compiler, *flags, *defines, "-o", str(folder / LIBRARY), str(SOURCE)],
        check=True,
        timeout=100,
    )
    return folder


def load(monkeypatch: pytest.MonkeyPatch, folder: Path, *, old: bool = False) -> ctypes.CDLL:
    """Make pynvml load a fresh stand-in instead of NVIDIA's library."""
    copy = folder / f"nvml-{next(_copies)}.so"  # a library of its own: its state is the test's
    shutil.copyfile(build(old=old) / LIBRARY, copy)
    library = ctypes.CDLL(str(copy))

    def find(name: str) -> ctypes.CDLL:
        assert name == LIBRARY
        return library

    unload(monkeypatch)
    monkeypatch.setattr(pynvml, "CDLL", find)
    return library


def unload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pynvml forget what it loaded, and find no library until it is given one."""

    def missing(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})


class NvmlScript:
    """The script: facts by the words that name them, written whole after each change."""

    def __init__(self, path: Path, cards: int = 2) -> None:
        """Write a node of *cards* sound cards on one host bridge, on driver 550.54.15."""
        self.path = path
        self._facts: dict[str, str] = {"driver": "550.54.15", "cards": str(cards)}
        self._events = 0
        self._held = False
        for index in range(cards):
            self._sound(index)
        for one, other in combinations(range(cards), 2):
            self._facts[f"level {one} {other}"] = "30"
        self._write()

    def _sound(self, index: int) -> None:
        facts = {
            "uuid": uuid(index),
            "name": "NVIDIA A100-SXM4-80GB",
            "minor": index,
            "memory": 80 * GIB,
            "pci": f"0 {index + 1:x} 0",
            "mig": 0,
            "ecc": 0,
            "action": 0,
            "pending": 0,
            "failed": 0,
            "events": XID | ECC,
        }
        for name, value in facts.items():
            self._facts[f"card {index} {name}"] = str(value)

    def _write(self) -> None:
        if self._held:
            return
        draft = self.path.with_suffix(".draft")
        draft.write_bytes(
            b"".join(
                f"{key} {value}\n".encode("utf-8", "surrogateescape")
                for key, value in self._facts.items()
            )
        )
        os.replace(draft, self.path)  # noqa: PTH105 -- the library reads at any moment

    @contextmanager
    def at_once(self) -> Iterator[None]:
        self._held = True
        yield
        self._held = False
        self._write()

    def set(self, key: str, value: object) -> None:
        self._facts[key] = str(value)
        self._write()

    def forget(self, *keys: str) -> None:
        for key in keys:
            del self._facts[key]
        self._write()

    def card(self, index: int, **facts: object) -> None:
        self._facts |= {f"card {index} {name}": str(value) for name, value in facts.items()}
        self._write()

    def fail(self, function: str, code: int, *, card: int | None = None) -> None:
        self.set(f"fail {function} {'*' if card is None else card}", code)

    def restore(self) -> None:
        self.forget(*(key for key in self._facts if key.startswith("fail ")))

    def event(
        self, card: int, kind: int = XID, data: int = 79, instance: int | None = None
    ) -> None:
        """Add an event of a card, or of one of its GPU instances; -1 is an unknown card."""
        self._events += 1
        named = "" if instance is None else f" {instance}"
        self.set(f"event {self._events}", f"{card} {kind} {data}{named}")

    def mig(self, card: int, *gpu_instances: int, profile: str = "1g.5gb", memory: int = 5) -> None:
        """Make MIG instances of a card, with these GPU instance IDs; *memory* is in GiB."""
        self.card(card, mig=1, instances=7, events=XID | ECC | MIG_CHANGE)
        for at, each in enumerate(gpu_instances):
            self._facts[f"instance {card} {at}"] = f"{each} 0 {instance_uuid(card, each)}"
            model = self._facts[f"card {card} name"]
            name = f"{model} MIG {profile}"
            self.card(instance_at(card, at), name=name, memory=memory * GIB)

    def process(
        self, card: int, pid: int, memory: int = 0, cores: int | None = None, *, draws: bool = False
    ) -> None:
        """Let a process be on a card: its bytes, -1 for untold, and hundredths of the card."""
        self._facts[f"process {card} {'G' if draws else 'C'} {pid}"] = str(memory)
        if cores is not None:
            self._facts[f"sample {card} {pid} {cores}"] = "1000"
        self._write()

    def nvlink(self, card: int, links: Iterable[int], end: str, *, state: str = "active") -> None:
        """Connect NVLinks of a card: ``gpu 0 2 0`` or ``switch 0 c4 0``."""
        for link in links:
            self._facts[f"nvlink {card} {link}"] = f"{state} {end}"
        self._write()


def instance_at(card: int, at: int) -> int:
    """The number of a MIG instance where the script's facts have that of a card."""
    return 100 + 10 * card + at


def instance_uuid(card: int, gpu_instance: int) -> str:
    return f"MIG-{card:08x}-{gpu_instance:04x}-5fc8-a9d5-83d7f2c4fe0f"


def mig_minors(proc: Path, *instances: tuple[int, int]) -> None:
    """Write the driver's list of capabilities, for instances by minor of the card and ID."""
    lines = ["config 1", "monitor 2"]
    for minor, gpu in instances:
        first = 3 + 135 * minor + 9 * gpu
        lines += [
            f"gpu{minor}/gi{gpu}/access {first}",
            f"gpu{minor}/gi{gpu}/ci0/access {first + 1}",
        ]
    path = proc / "driver/nvidia-caps/mig-minors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def uuid(index: int) -> str:
    return f"GPU-8932f937-d72c-4106-c12f-20bd9faed9f{index:x}"
