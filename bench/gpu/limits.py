"""Limits as a program sees them, with our enforcer, the limiting library and a driver.

The program (:mod:`bench.gpu.share`) runs with the agent's container edits. It prints the memory
size of each card, and whether it can allocate its share.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from agent.enforcement.hami import HamiCore
from agent.enforcement.hami_library import HamiLibrary
from agent.holdings.edits import ContainerEdits
from agent.holdings.holding import ContainerRef, Holding, are_whole, make_key
from bench.gpu import confined
from contract.inventory import Amounts, Card
from placement.pods import PodId

BLOCK = 256 << 20
"""Bytes of a block of memory."""

_MIB = 1 << 20
_REF = ContainerRef(PodId("default", "limits", "11111111-2222-4333-8444-555555555555"), "main")
_CARD_LINE = re.compile(r"[0-9a-fA-F:.]+: .* MiB, |busy [0-9]+%$")
_READ = re.compile(
    r" (core utilization limit|limit|total utilization|hard limit mode|enable mode)"
    r" *[:=] ([0-9]+)$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class LimitedContainer:
    """A container with a share of each card.

    Attributes:
        cores: cores of each card.
        blocks: memory blocks, by card.
        core_limit: limit of cores, if it differs.
        spin: blocks of its program's kernels; 0 for no kernels. The libraries count blocks.
    """

    cores: int
    blocks: Mapping[Card, int]
    core_limit: int | None = None
    spin: int = 0

    @cached_property
    def holding(self) -> Holding:
        """What it holds, as a claim would give it."""
        cards = {card.uuid: Amounts(self.cores, blocks) for card, blocks in self.blocks.items()}
        key = make_key(f"{self.cores} of {sorted(cards)}")
        return Holding(_REF, key, cards, are_whole(cards), self.core_limit)

    def run(
        self, edits: ContainerEdits, variables: Mapping[str, str], before: str = ":"
    ) -> list[str]:
        """Run the program; return its lines, and the limits that a library logged.

        Raises:
            ProgramFailed: the program failed.
        """
        by_bus = sorted(self.blocks.items(), key=lambda each: each[0].bus_id)
        shares = [str(blocks * BLOCK // _MIB) for _, blocks in by_bus]
        command = [sys.executable, "-m", "bench.gpu.share", str(self.spin), *shares]
        here = {"PYTHONPATH": str(Path(__file__).parents[2])}
        output, errors = confined.run(edits, command, here | dict(variables), before=before)
        lines = [each for each in output.splitlines() if _CARD_LINE.match(each)]
        return lines + list(dict.fromkeys(" ".join(each) for each in _READ.findall(errors)))


def hami(
    container: LimitedContainer, library: Path, folder: Path, variables: Mapping[str, str]
) -> list[str]:
    """Run a container with the limits of HAMi-core's library in the folder *library*.

    Raises:
        ProgramFailed: the program failed.
    """
    enforcer = HamiCore(
        state_dir=folder / "state",
        library=HamiLibrary(library, on_outdated=lambda _: None),
        block=BLOCK,
        cards=tuple(container.blocks),
    )
    enforcer.open()
    edits = enforcer.prepare_allocation(container.holding)
    enforcer.prepare_start(container.holding)
    return container.run(edits, {"LIBCUDA_LOG_LEVEL": "3"} | dict(variables))
