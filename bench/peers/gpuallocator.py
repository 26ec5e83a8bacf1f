"""Cases of ``NVIDIA/go-gpuallocator`` (``besteffort``, ``simple`` and ``staticdgx_test.go``).

Left out: the iteration over sets, the reading of NVML, and requests of size 0, which here are pods
without GPUs.
"""

from collections.abc import Iterator

from bench.peers.machines import PASCAL, RTX8000, VOLTA, Machine
from bench.peers.questions import REFUSED, Placing, whole
from bench.peers.verdicts import Case

PEER = "go-gpuallocator"

# Free cards, required ones, how many, and which are expected; all on a DGX-1 Volta.
_BEST_EFFORT = """
one link, one switch: 0245 - 2 45
one link, one socket: 0456 - 2 56
two links within a socket: 013 - 2 03
two links across sockets: 014 - 2 04
one required of 1: 01234567 4 1 4
one required of 2: 01234567 4 2 47
one required of 4: 01234567 4 4 4567
required, not free: 1234567 0123 4 -
all required: 01234567 0246 4 0246
more required than wanted: 01234567 123456 4 -
more required than free: 12345 123456 1 -
"""
_SIMPLE = """
1: 01234567 - 1 0
2: 01234567 - 2 01
3: 01234567 - 3 012
4: 01234567 - 4 0123
5: 01234567 - 5 01234
6: 01234567 - 6 012345
7: 01234567 - 7 0123456
8: 01234567 - 8 01234567
one required of 1: 01234567 4 1 4
one required of 2: 01234567 4 2 04
one required of 4: 01234567 4 4 0124
required, not free: 1234567 0123 4 -
all required: 01234567 0246 4 0246
more required than wanted: 01234567 123456 4 -
"""
_STATIC = """
one required of 1: 01234567 4 1 4
one required of 2: 01234567 4 2 47
one required of 4: 01234567 4 4 4567
required, not free: 1234567 0123 4 -
required in no set: 01234567 0246 4 -
all required: 01234567 4567 4 4567
more required than wanted: 01234567 123456 4 -
"""

# Requests in a row on an empty machine, each with the cards expected; then one that is refused.
_ONES = "0 1 2 3 4 5 6 7"
_IN_A_ROW: tuple[tuple[Machine, str], ...] = (
    (RTX8000, "0 1 2 3"),
    (RTX8000, "03 12"),
    (RTX8000, "0123"),
    (PASCAL, _ONES),
    (PASCAL, "02 13 46 57"),
    (PASCAL, "0123 4567"),
    (PASCAL, "01234567"),
    (VOLTA, _ONES),
    (VOLTA, "03 12 47 56"),
    (VOLTA, "0123 4567"),
    (VOLTA, "01234567"),
)


def ask(machine: Machine, busy: str, size: int, required: str = "") -> Placing:
    """Ask for whole cards of a machine of which some are taken."""
    box = whole(machine, busy=[int(card) for card in busy])
    return Placing(box, (f"{size}00/",), must=tuple(map(int, required)))


def in_a_row(machine: Machine, sets: str) -> Iterator[tuple[str, Placing, str]]:
    """Yield name, question and expected answer of requests in a row, each as the peer left it."""
    busy = ""
    for number, cards in enumerate(sets.split()):
        name = f"{machine.name}, {len(cards)} cards, request {number + 1}"
        yield name, ask(machine, busy, len(cards)), ",".join(cards)
        busy += cards
    yield f"{machine.name}, full by {sets.split(maxsplit=1)[0]}", ask(machine, busy, 1), REFUSED


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for test, table, rule in (
        ("best effort", _BEST_EFFORT, ""),
        ("simple", _SIMPLE, ""),
        ("static DGX-1", _STATIC, "fixed-sets"),
    ):
        for line in table.strip().splitlines():
            name, _, rest = line.partition(": ")
            free, required, size, expected = (part.strip("-") for part in rest.split())
            busy = "".join(card for card in "01234567" if card not in free)
            question = ask(VOLTA, busy, int(size), required)
            yield Case(PEER, test, name, question, ",".join(expected) or REFUSED, rule)
    for test in ("best effort", "static DGX-1"):
        for machine, sets in _IN_A_ROW:
            if test == "best effort" or machine is not RTX8000:
                for name, question, wants in in_a_row(machine, sets):
                    yield Case(PEER, test, name, question, wants)
    for machine in (PASCAL, VOLTA):
        for count in (3, 5, 6, 7, 9):
            name = f"{machine.name}, {count} cards are no set"
            yield Case(PEER, "static DGX-1", name, ask(machine, "", count), REFUSED, "fixed-sets")
