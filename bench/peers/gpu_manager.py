"""Cases of ``tkestack/gpu-manager`` and of ``tkestack/gpu-admission``.

From ``pkg/algorithm``, ``pkg/device``, ``pkg/services/allocator`` and ``pkg/predicate``. A memory
block is 256 MiB. Left out: what is written into containers, the deletion of refused pods of a
ReplicaSet, labels, and the server's sockets.
"""

from collections.abc import Iterator

from bench.peers.machines import SIX, Machine, plain
from bench.peers.questions import (
    ALLOWED,
    FITS,
    REFUSED,
    Admission,
    Box,
    Choice,
    Counted,
    Placing,
    used,
    whole,
)
from bench.peers.verdicts import Case

MANAGER, ADMISSION = "gpu-manager", "gpu-admission"

_CARD = (0, 0, 4)
_FULL = (100, 4, 4)

# Pods of the allocator's tests in a row: containers, the card or cards that the scheduler chose
# for each GPU container, and the cores and blocks taken on the six cards before.
_ALLOCATOR: tuple[tuple[str, tuple[str, ...], str, dict[int, tuple[int, int]]], ...] = (
    ("three cards", ("300/3", "0/0"), "0,1,2", {}),
    ("a card for each of two", ("100/1", "100/1"), "3 | 4", dict.fromkeys((0, 1, 2), (100, 1))),
    ("the last card", ("100/1",), "5", dict.fromkeys(range(5), (100, 1))),
    ("half a card", ("50/1",), "3", dict.fromkeys((0, 1, 2, 5), (100, 1))),
    ("60 cores", ("60/1",), "4", dict.fromkeys((0, 1, 2, 5), (100, 1)) | {3: (50, 1)}),
    (
        "the other half",
        ("50/1",),
        "3",
        dict.fromkeys((0, 1, 2, 5), (100, 1)) | {3: (50, 1), 4: (60, 1)},
    ),
    (
        "a card that is free again",
        ("100/1",),
        "4",
        dict.fromkeys((0, 1, 2, 3, 5), (100, 1)),
    ),
    ("all cards, three blocks", ("600/3", "0/0"), "0,1,2,3,4,5", {}),
    ("a pod without owner", ("5/3", "0/0"), "5", {}),
    ("a pod owned by a pod", ("5/3", "0/0"), "4", {5: (5, 3)}),
    ("a pod of a ReplicaSet", ("5/3", "0/0"), "3", {4: (5, 3), 5: (5, 3)}),
    ("all cards, an answer remembered", ("600/3", "0/0"), "0,1,2,3,4,5", {}),
    ("the server's two small shares", ("10/1", "10/1"), "0 | 0", {}),
)

_PHASES = (("Pending", "yes"), ("Running", "yes"), ("Failed", "no"), ("Succeeded", "no"))


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for test, box, pod, wants in (
        ("fragment", whole(SIX), "200/", "4,5"),
        ("fragment", whole(SIX, busy=[4]), "100/", "5"),
        ("fragment", whole(plain(1)), "100/", "0"),
        ("link", whole(SIX), "300/", "0,1,2"),
        ("link", whole(SIX, busy=[2]), "200/", "0,1"),
        ("share", _six({}), "50/1", "0"),  # its memory is 0 there: that is asked below
        ("share", _six({0: (50, 0)}), "60/1", "1"),
    ):
        yield Case(MANAGER, test, f"{pod} on {box.machine.name}", Placing(box, (pod,)), wants)
    yield Case(MANAGER, "share", "without memory", Admission(("50/",)), ALLOWED)
    for card in range(6):
        taken = dict.fromkeys((5, *range(card)), (100, 1))
        wants = str(card) if card < 5 else REFUSED
        question = Placing(_six(taken), ("100/",))
        yield Case(MANAGER, "sort", f"{len(taken)} cards taken", question, wants)
    yield from _tree(SIX)
    yield from _tree(plain(1))
    for name, containers, chosen, taken in _ALLOCATOR:
        yield Case(MANAGER, "allocator", f"{name}: admitted", Admission(containers), ALLOWED)
        cards = [tuple(map(int, each.split(","))) for each in chosen.split(" | ")]
        by_name = {f"c{number}": each for number, each in enumerate(cards)}
        gpus = tuple(each for each in containers if each != "0/0")
        question = Placing(_six(taken), gpus, chosen=by_name)
        yield Case(MANAGER, "allocator", f"{name}: placed", question, chosen)
    for phase, counted in _PHASES:
        yield Case(MANAGER, "recovery", f"a pod that is {phase}", Counted(phase), counted)
    yield from _admission()


def _six(taken: dict[int, tuple[int, int]]) -> Box:
    free = tuple(
        (100 - cores, 4 - blocks) for cores, blocks in (taken.get(n, (0, 0)) for n in range(6))
    )
    return Box(SIX, free, (4,) * 6)


def _tree(machine: Machine) -> Iterator[Case]:
    """Yield how many whole cards are left: of all, with half a card taken, with one taken."""
    count = machine.count
    half = Box(machine, ((50, 60), *[(100, 64)] * (count - 1)), (64,) * count)
    for name, box, left in (
        ("nothing is taken", whole(machine), count),
        ("half a card is taken", half, count - 1),
        ("it is given back", whole(machine), count),
        ("a card is taken", whole(machine, busy=[0]), count - 1),
    ):
        for size, wants in ((left, FITS), (left + 1, REFUSED)):
            if size:
                question = Placing(box, (f"{size}00/",))
                yield Case(MANAGER, "tree", f"{machine.name}, {name}: {size}", question, wants)


def _admission() -> Iterator[Case]:
    """Yield pods in a row on three nodes of two cards with four blocks each."""
    empty = used(_CARD, _CARD)
    first = used((20, 2, 4), _CARD)
    second = used(_FULL, (80, 3, 4))
    last = used(_FULL, _FULL)
    for name, pod, boxes, wants in (
        ("two small shares", ("10/1", "10/1"), (empty, empty, empty), "0"),
        ("a card and most of one", ("100/3", "80/3"), (first, empty, empty), "1"),
        ("two cards, more memory than they have", ("200/10", "0/0"), (first, second, empty), "2"),
        ("a small share", ("10/2", "0/0"), (first, second, last), "0"),
    ):
        yield Case(ADMISSION, "filter", f"{name}: admitted", Admission(pod), ALLOWED)
        gpus = tuple(each for each in pod if each != "0/0")
        yield Case(ADMISSION, "filter", f"{name}: node", Choice(boxes, gpus), wants)
        question = Placing(boxes[int(wants)], gpus)
        yield Case(ADMISSION, "filter", f"{name}: cards", question, FITS)
