"""Cases of ``coldzerofear/vgpu-manager`` (``pkg/device``, ``pkg/scheduler/filter``, ``pkg/util``).

Left out, for there is nothing like it here: strict topology and NUMA modes, several cards' shares
in one container, oversubscription, gangs, preemption, claims of DRA; its random topologies,
which only its own generator draws, and its copy of NVIDIA's table, which is in ``gpuallocator``.
"""

from collections.abc import Iterator
from itertools import chain

from bench.peers.machines import (
    BRIDGE,
    CUBE,
    PASCAL,
    PCIE,
    RTX8000,
    SWITCH,
    VOLTA,
    Machine,
    choose_as_nvidia,
    plain,
)
from bench.peers.questions import (
    ALLOWED,
    DENIED,
    FITS,
    REFUSED,
    Admission,
    Choice,
    Footprint,
    Placing,
    Wish,
    used,
    whole,
)
from bench.peers.verdicts import Case

PEER = "vgpu-manager"

_A100 = "NVIDIA A100-SXM4-80GB"
_RTX = "NVIDIA GeForce RTX 3080 Ti"

# Card, use-gpu-type, nouse-gpu-type (None: no annotation), whether it may be used.
_TYPES: tuple[tuple[str, str | None, str | None, str], ...] = (
    ("NVIDIA A10", "A10", None, "yes"),
    ("NVIDIA A100-SXM4-40GB", "3080Ti", None, "no"),
    ("NVIDIA A100-SXM4-40GB", "NVIDIA A10", "NVIDIA A100", "no"),
    (_A100, "NVIDIA A100-SXM4-40GB", None, "no"),
    (_A100, None, "NVIDIA A100", "no"),
    (_RTX, "RTX 4090,RTX 3080", None, "yes"),
    (_RTX, None, None, "yes"),
    (_A100, "a100", None, "yes"),
    (_A100, "", None, "yes"),
    (_A100, None, "   ", "yes"),
    (_A100, "V100,", None, "no"),
    (_A100, None, ",V100", "yes"),
    (_A100, None, "V100,", "yes"),
    (_A100, "   ", None, "yes"),
    (_A100, ",,", None, "yes"),
    (_A100, "A100", "A100", "no"),
)
_CARD, _OTHER = "GPU-8f6d2c1e-0000", "GPU-11111111-2222"
_UUIDS: tuple[tuple[str | None, str | None, str], ...] = (
    (_CARD, None, "yes"),
    (_OTHER, None, "no"),
    (f"{_OTHER},{_CARD}", None, "yes"),
    (None, _CARD, "no"),
    (None, f"{_OTHER},{_CARD}", "no"),
    (None, None, "yes"),
    ("", None, "yes"),
    ("   ", None, "yes"),
    (f"{_CARD},", None, "yes"),
    (f",{_CARD}", None, "yes"),
    (None, f"{_CARD},", "no"),
    (None, f",{_CARD}", "no"),
    (None, "   ", "yes"),
    (_CARD, _CARD, "no"),
    (_CARD, _OTHER, "yes"),
)

# Containers, the card of each, and what all of them hold on each card.
_FOOTPRINTS = (
    (("50/1000",), "0", "0:50/1000"),
    (("30/1000", "40/2000"), "00", "0:70/3000"),
    (("init:20/500", "60/4000"), "00", "0:60/4000"),
    (("init:20/8000", "60/4000"), "00", "0:60/8000"),
    (("init:100/16000", "50/4000"), "10", "0:50/4000 1:100/16000"),
    (("init:30/2000",), "0", "0:30/2000"),
    (("init:30/2000", "init:70/1000"), "00", "0:70/2000"),
    (("side:20/1000", "50/4000"), "00", "0:70/5000"),
    (("side:20/1000", "init:90/3000", "50/4000"), "000", "0:110/5000"),
    (("init:80/8000", "40/4000"), "00", "0:80/8000"),
    (("init:80/20000", "40/10000", "40/10000"), "000", "0:80/20000"),
    (("init:60/6000",), "0", "0:60/6000"),
    (("side:20/2000", "40/4000"), "00", "0:60/6000"),
    (("30/3000", "25/2000"), "00", "0:55/5000"),
    (("side:20/2000", "init:50/5000", "40/4000"), "000", "0:70/7000"),
    (("init:50/5000", "init:60/6000"), "00", "0:60/6000"),
)

_NODE = used((0, 0, 12288), (0, 0, 12288), (0, 0, 20480), (0, 0, 20480))
_PODS = (
    (("init:80/8000", "40/4000"), FITS),
    (("init:60/6000",), FITS),
    (("side:20/2000", "40/4000"), FITS),
    (("init:10/24000", "10/1000"), REFUSED),
    (("init:500/5000",), REFUSED),
    (("1700/",), REFUSED),
    (("200/24576", "200/24576", "200/24576"), REFUSED),
    (("200/24576", "200/24576"), FITS),
    (("20/2048", "20/2048"), FITS),
)
_ADMITTED = (
    ("100/", ALLOWED),
    ("50/", ALLOWED),
    ("/4", ALLOWED),
    ("100/12", ALLOWED),
    ("101/", DENIED),
    ("/2048", ALLOWED),
)

_POLICIES = ("", "binpack", "spread")


def wishes(kind: str, use: str | None, nouse: str | None) -> dict[str, str]:
    """Write wishes as annotations: ``use-gpu-type`` or ``-uuid``, and the opposite."""
    keys = {f"use-gpu-{kind}": use, f"nouse-gpu-{kind}": nouse}
    return {key: text for key, text in keys.items() if text is not None}


def cases() -> Iterator[Case]:
    """Yield all cases."""
    return chain(_wishes(), _pods(), _links(), _known_machines())


def _wishes() -> Iterator[Case]:
    for model, use, nouse, wants in _TYPES:
        name = f"{use!r}, not {nouse!r}: {model}"
        yield Case(PEER, "types", name, Wish(wishes("type", use, nouse), model), wants)
    for use, nouse, wants in _UUIDS:
        question = Wish(wishes("uuid", use, nouse), uuid=_CARD)
        yield Case(PEER, "UUIDs", f"{use!r}, not {nouse!r}: {_CARD}", question, wants)


def _pods() -> Iterator[Case]:
    one = used((0, 0, 24000))
    for pod, cards, wants in _FOOTPRINTS:
        name = " ".join(pod)
        question = Footprint(pod, tuple((int(card),) for card in cards))
        yield Case(PEER, "footprint", f"{name}, by card", question, wants)
        if "1" not in cards:
            total = wants.removeprefix("0:")
            yield Case(PEER, "footprint", f"{name}, in all", Footprint(pod), total)
            fits = REFUSED if int(total.partition("/")[0]) > 100 else FITS
            yield Case(PEER, "allocator", f"{name} on one card", Placing(one, pod), fits)
    for pod, wants in _PODS:
        yield Case(PEER, "filter", " ".join(pod), Placing(_NODE, pod), wants)
    for container, wants in _ADMITTED:
        yield Case(PEER, "needs", container, Admission((container,)), wants)
    for name, text in (
        ("no configuration", ""),
        ("unreadable", "xxxxxxxxx"),
        ("no cards", '{"memoryBlock":1048576,"cards":[],"links":[]}'),
        ("a list in place of the inventory", "[]"),
        ("no size of a block", '{"memoryBlock":0,"cards":[],"links":[]}'),
    ):
        broken = Choice((one,), ("10/100",), inventories={0: text})
        yield Case(PEER, "node filter", name, broken, REFUSED)
    yield Case(PEER, "node filter", "good", Choice((one,), ("10/100",)), FITS)
    nodes = tuple(
        used(*[(cores, blocks, 80000)] * 4)
        for cores, blocks in ((0, 0), (50, 40000), (80, 50000), (80, 50000))
    )
    for policy, wants in (("binpack", "2,3"), ("spread", "0")):
        order = Choice(nodes, ("10/1000",), {"gpu-node-policy": policy})
        yield Case(PEER, "node order", policy, order, wants)


def _whole(machine: Machine, size: int, busy: str = "", policy: str = "") -> Placing:
    box = whole(machine, busy=[int(card) for card in busy])
    return Placing(box, (f"{size}00/",), {"gpu-policy": policy} if policy else {})


def _links() -> Iterator[Case]:
    for policy in _POLICIES:
        for size, wants in ((2, "0,3"), (4, "0,3,4,5"), (6, "0,3,4,5,6,7")):
            question = _whole(SWITCH, size, "12", policy)
            yield Case(PEER, "tiers", f"NVSwitch, {policy} {size}", question, wants)
        for machine in (SWITCH, CUBE, BRIDGE, PCIE):
            for size in (2, 4):
                question = _whole(machine, size, "15", policy)
                name = f"{machine.name}, 1 and 5 taken, {policy} {size}"
                yield Case(PEER, "tiers", name, question, FITS)
    bridged = "0,1 or 2,3 or 4,5 or 6,7"
    split = Machine("islands", 4, {(0, 1): 1, (2, 3): 1})
    for machine, size, wants in (
        (CUBE, 4, "0,1,2,3"),
        (CUBE, 2, "0,3 or 0,4 or 1,2 or 1,5 or 2,3 or 4,7 or 5,6 or 6,7"),
        (BRIDGE, 2, bridged),
        (BRIDGE, 4, "0,1,2,3"),
        (PCIE, 2, bridged),
        (PCIE, 4, "0,1,2,3"),
        (plain(4), 1, FITS),
        (plain(4), 2, "0,1"),
        (SWITCH, 1, "0"),
        (CUBE, 1, "0"),
        (PCIE, 1, "0"),
        (split, 3, FITS),
        (RTX8000, 2, "0,3 or 1,2"),
        *((machine, size, FITS) for machine in (PASCAL, VOLTA) for size in (2, 4, 8)),
    ):
        yield Case(PEER, "tiers", f"{machine.name}, {size}", _whole(machine, size), wants)


def _known_machines() -> Iterator[Case]:
    """Yield what is compared with NVIDIA's policy: never a lower sum is expected."""
    known = (
        (machine, busy, size)
        for machine in (SWITCH, CUBE, BRIDGE, PCIE)
        for busy in ("", "0", "15", "036")
        for size in (2, 3, 4)
    )
    upstream = (
        (machine, busy, size)
        for machine in (RTX8000, PASCAL, VOLTA)
        for busy in ("", "0", "15", "036", "24")
        for size in range(2, machine.count + 1)
    )
    for machine, busy, size in (*known, *upstream):
        free = [card for card in range(machine.count) if str(card) not in busy]
        wants = ",".join(map(str, choose_as_nvidia(machine, free, size)))
        if wants:
            name = f"{machine.name}, {busy or 'none'} taken, {size}"
            yield Case(PEER, "against NVIDIA's", name, _whole(machine, size, busy), wants)
