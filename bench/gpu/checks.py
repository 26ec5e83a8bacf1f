"""The checks on a real GPU; each returns rows of the table, and none changes the card."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from agent.cards.health import CardFault
from agent.cards.inventory import Discovery
from agent.cards.nvml import NvmlSource
from agent.cards.nvml_use import read_use
from agent.holdings.edits import ContainerEdits
from agent.kubernetes_api.inventory import model_label, survey
from bench.gpu import confined, limits
from bench.gpu.limits import LimitedContainer
from bench.gpu.table import Row, near, row, skipped
from contract.inventory import Card, decode_inventory, encode_inventory
from contract.resource import Resource

MIB = 1 << 20
_BLOCK = 256 * MIB
_HELD = 1024 * MIB
_CONTEXT = 1024 * MIB  # a CUDA context itself needs some hundred MiB
_SECONDS = 14.0
_SETTLE = 3.0  # the driver's samples cover the last second or less
_READ_EVERY = 0.5
_DUTIES = (0.25, 0.75)
_POINTS = 10.0
_LABEL = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z", re.ASCII)  # of Kubernetes


class LoadFailed(Exception):
    """The process with the load failed."""


def list_cards(found: Discovery) -> list[Row]:
    """Check discovery, topology and inventory against each other."""
    cards = found.inventory.cards
    pairs = len(cards) * (len(cards) - 1) // 2
    linked = pairs - len(found.inventory.unlinked())
    shown = survey(
        found.inventory,
        block=_BLOCK,
        unhealthy=lambda _uuid: "",
        cordoned=frozenset(),
        free={
            Resource.CORE: {each.uuid: 100 for each in cards},
            Resource.MEMORY: {each.uuid: each.memory // _BLOCK for each in cards},
        },
    )
    same = decode_inventory(encode_inventory(shown)) == shown
    models = ", ".join(sorted({each.model for each in cards}))
    label = model_label(each.model for each in cards) or ""
    nodes = [each.device for each in cards if not Path(each.device).exists()]
    return [
        row("discovery", "every card", f"{len(cards)} served: {models}", right=bool(cards)),
        row("left out", "none, or MIG mode", _reasons(found), right=not found.faults),
        row("device nodes", "all there", ", ".join(nodes) or "all there", right=not nodes),
        row("topology", f"{pairs} pairs", f"{linked} pairs", right=linked == pairs),
        row("inventory", "read back as written", str(same), right=same),
        row("label", "a label's value", label or "none", right=bool(_LABEL.match(label))),
    ]


def health(cards: tuple[Card, ...]) -> list[Row]:
    """Check that every card passes the probe, and that its events can be watched."""
    rows = []
    with NvmlSource().open() as session:
        session.discover()
        unwatched = session.watch([each.uuid for each in cards])
        for card in cards:
            result = session.probe(card.uuid)
            unhealthy = isinstance(result, CardFault)
            found = result.text if isinstance(result, CardFault) else "healthy"
            rows.append(row(f"health of card {card.index}", "healthy", found, right=not unhealthy))
    found = "; ".join(sorted(set(unwatched.values()))) or "all"
    return [*rows, row("cards whose events are watched", "all", found, right=not unwatched)]


def use(card: Card) -> list[Row]:
    """Compare the use that the agent reads with a load of known size."""
    rows = []
    for duty in _DUTIES:
        begun, busy, cores, memory = time.time_ns() // 1000, [], [], 0
        with _load(card, f"--memory={_HELD}", f"--duty={duty}", f"--seconds={_SECONDS}") as run:
            pid = int(run.line()["pid"])
            time.sleep(_SETTLE)
            until = time.monotonic() + _SECONDS - 2 * _SETTLE
            while time.monotonic() < until:
                found = read_use([card.uuid], since=begun)[card.uuid]
                busy += [] if found.cores is None else [found.cores]
                by_process = found.process_cores or {}
                cores += [by_process[pid]] if pid in by_process else []
                memory = max(memory, (found.process_memory or {}).get(pid, 0))
                time.sleep(_READ_EVERY)
            real = 100 * float(run.line()["duty"])
        problems = (
            "; ".join(found.problems)
            or "the driver does not list our process: run this on the host, not in a container"
        )
        for what, figures in (("card", busy), ("process", cores)):
            name = f"load of {duty:.0%}: cores of the {what}"
            if figures:
                rows.append(near(name, real, sum(figures) / len(figures), _POINTS, "%"))
            else:
                rows.append(skipped(name, problems))
        name = f"load of {duty:.0%}: memory of the process"
        known = (_HELD + _CONTEXT / 2) / MIB
        if memory:
            rows.append(near(name, known, memory / MIB, _CONTEXT / 2 / MIB, "MiB"))
        else:
            rows.append(skipped(name, problems))
    return rows


def hami(card: Card, library: Path) -> list[Row]:
    """Check that HAMi-core's library enforces the limits in the agent's container edits."""
    confined.check()
    container, alone = LimitedContainer(30, {card: 8}), {"CUDA_VISIBLE_DEVICES": card.uuid}
    (plain,) = container.run(ContainerEdits(), alone)
    with tempfile.TemporaryDirectory() as folder:
        held, *_ = limits.hami(container, library.parent, Path(folder), alone)
    free, limited = "half given, all given", "2048 MiB, half given, all refused"
    return [
        row("2 GiB without HAMi-core", free, plain, right=plain.endswith(free)),
        row("2 GiB with HAMi-core", limited, held, right=held.endswith(f": {limited}")),
    ]


class _Run:
    """A running load."""

    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str]) -> None:
        self._process, self._errors = process, errors

    def line(self) -> dict[str, Any]:
        """Return its next line.

        Raises:
            LoadFailed: it ended without another line.
        """
        for line in self._process.stdout or ():
            decoded: dict[str, Any] = json.loads(line)
            return decoded
        self._errors.seek(0)
        printed = self._errors.read().strip().splitlines()
        raise LoadFailed(f"the load ended: {printed[-1] if printed else 'without a message'}")


@contextmanager
def _load(card: Card, *options: str) -> Iterator[_Run]:
    """Run a load on a card until the block ends."""
    command = [sys.executable, "-m", "bench.gpu.load", *options]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": card.uuid}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(  # noqa: S603 - ourselves
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            yield _Run(process, errors)
        finally:
            process.kill()


def _reasons(found: Discovery) -> str:
    left = (*found.faults, *found.skipped)
    return "; ".join(f"card {each.index}: {each.reason}" for each in left) or "none"
