"""Cases of ``Project-HAMi/HAMi`` (``pkg/device``, ``pkg/device/nvidia``, ``pkg/scheduler``).

A card's memory of MiB is as many blocks. Left out, for there is nothing like it here: makers other
than NVIDIA, MIG, percentages of memory, several cards' shares in one container, slots of a card,
NUMA binding, cordon, weights, quotas (a ResourceQuota's here), and its encodings.
"""

from collections.abc import Iterator
from itertools import chain

from bench.peers.machines import Machine
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
from bench.peers.vgpu_manager import wishes

PEER = "HAMi"

# use, nouse, the card, whether it may be used.
_UUIDS: tuple[tuple[str | None, str | None, str, str], ...] = (
    (None, None, "abc", "yes"),
    ("abc,123", None, "abc", "yes"),
    ("abc,123", None, "1abc", "no"),
    (None, "abc,123", "abc", "no"),
    (None, "abc,123", "1abc", "yes"),
    ("abc,123", "abc", "abc", "no"),
    ("abc,123", "456", "abc", "yes"),
    ("1abc", "abc", "1abc", "yes"),  # by both tables of lists above: compared exactly
    (" abc , 123 ", None, "abc", "yes"),
    ("", None, "abc", "yes"),
    ("   ", None, "abc", "yes"),
    (None, "", "abc", "yes"),
)
_A100, _V100 = "NVIDIA-A100", "NVIDIA-V100"
_TYPES: tuple[tuple[str | None, str | None, str, str], ...] = (
    (None, None, _A100, "yes"),
    ("A100,V100", None, _A100, "yes"),
    ("V100", None, _A100, "no"),
    (None, "A100", _A100, "no"),
    (None, "V100", _A100, "yes"),
    ("", None, _A100, "yes"),
    (None, "   ", _A100, "yes"),
    ("A100", "A100", _A100, "no"),
    (None, "V100,", _A100, "yes"),
    (None, ",V100", _A100, "yes"),
    ("V100,", None, _A100, "no"),
    ("A10", None, "NVIDIA A100", "yes"),
    ("A10", "A100", "NVIDIA A100", "no"),
    ("A10", "A100", "NVIDIA A10", "yes"),
    (None, "A100", _V100, "yes"),
    ("   ", None, _A100, "yes"),
    (None, "", _A100, "yes"),
    ("A100", None, _V100, "no"),
)

# Policy; cards as cores used, memory used, memory in all; containers; the cards expected.
_PLACED = """
one card: spread 0,0,8000 30/1000 0
one card in use: spread 50,4000,8000 30/1000 0
two cards: spread 0,0,8000 0,0,8000 30/1000 1
one of two in use: spread 0,0,8000 50,4000,8000 30/1000 0
two containers, the first with a card: binpack 0,0,8000 30/1000 - 0
two containers, the second with a card: binpack 0,0,8000 - 30/1000 0
three containers, the middle one with a card: spread 0,0,8000 - 30/1000 - 0
two containers on two cards: spread 0,0,8000 0,0,8000 30/8000 30/1000 1|0
a card too small: spread 0,0,50 30/1000 refused
an init container too large: binpack 0,7500,8000 0,7500,8000 init:30/4000 30/100 refused
an init container of too many cores: binpack 80,0,8000 80,0,8000 init:30/1000 10/1000 refused
two init containers, one with a card: binpack 0,0,8000 init:- init:30/1000 30/1000 0|0
an init container and another: binpack 0,0,8000 0,0,8000 init:30/1000 30/1000 1|1
a quarter is used: binpack 25,2048,8192 25/1024 0
two cards wanted of one: binpack 25,2048,8192 200/ refused
memory is used up: binpack 25,8000,8000 100/8000 refused
a whole card that is in use: binpack 1,2048,8192 100/100 refused
one of two is enough: binpack 25,2048,8192 25,2048,8192 25/1024 fits
fit: binpack 0,0,128 0,0,128 50/64 1
no memory: binpack 0,0,128 50/512 refused
no cores: binpack 100,0,1024 50/512 refused
a whole card in use: binpack 20,0,1280 100/512 refused
no cores at all: binpack 100,0,1280 1/512 refused
two of one: binpack 10,0,1280 200/1024 refused
three of two: binpack 0,0,1280 0,0,1280 300/1536 refused
a tenth of the memory: binpack 10,0,1280 20/128 0
a card almost full: binpack 0,11260,11264 100/11264 refused
an empty card whole: binpack 0,0,11264 100/11264 0
the fuller by binpack: binpack 10,10,100 20,20,100 5/5 1
the fuller by binpack, the other way round: binpack 20,20,100 10,10,100 5/5 0
the emptier by spread: spread 10,10,100 20,20,100 5/5 0
the emptier by spread, the other way round: spread 20,20,100 10,10,100 5/5 1
alike by binpack: binpack 15,15,100 15,15,100 5/5 1
alike by spread: spread 15,15,100 15,15,100 5/5 0
the idlest of three: spread 1,1,100 8,8,100 5,5,100 10/10 0
"""

# Containers and what a card holds of them; all of them on card 0.
_FOOTPRINTS = (
    (("10/100", "20/200"), "30/300"),
    (("init:10/100", "init:30/200"), "30/200"),
    (("init:50/500", "10/100"), "50/500"),
    (("init:80/1000", "20/200"), "80/1000"),
    (("init:10/100", "20/200", "30/300"), "50/500"),
    (("init:10/100", "init:30/300", "init:20/200", "5/50"), "30/300"),
    (("init:20/200", "30/300"), "30/300"),
    (("10/100", "10/100", "10/100"), "30/300"),
    (("init:10/800", "init:10/800", "10/500"), "10/800"),
    (("init:10/1500", "10/100"), "10/1500"),
    (("init:10/20000", "10/10000"), "10/20000"),
)
_WITHOUT_INIT = (
    (("init:99/999", "10/100", "20/200"), "30/300"),
    (("init:50/500", "20/200"), "20/200"),
    (("init:99/999", "10/100", "10/100"), "20/200"),
)

_ADMITTED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("100/",), ALLOWED),
    (("1/",), ALLOWED),
    (("/1",), ALLOWED),
    (("-",), ALLOWED),
    (("70/",), ALLOWED),
    (("/8192",), ALLOWED),
    (("200/8192",), ALLOWED),
    (("120/512",), ALLOWED),
    (("50/16Gi",), DENIED),
    (("50/16.0Gi",), DENIED),
    (("50/1Gi",), DENIED),
    (("init:-", "init:10/1000", "10/1000"), ALLOWED),
    (("init:10/1000", "init:10/1000", "10/1000", "10/1000"), ALLOWED),
    (("100/!",), DENIED),
    (("init:10/1000!", "10/1000"), DENIED),
    (("10/1000", "-!"), DENIED),
    (("-!",), ALLOWED),
)


def cases() -> Iterator[Case]:
    """Yield all cases."""
    return chain(_wishes(), _placed(), _by_links(), _nodes(), _pods())


def _wishes() -> Iterator[Case]:
    for use, nouse, card, wants in _UUIDS:
        question = Wish(wishes("uuid", use, nouse), uuid=card)
        yield Case(PEER, "UUIDs", f"{use!r}, not {nouse!r}: {card}", question, wants)
    for use, nouse, card, wants in _TYPES:
        question = Wish(wishes("type", use, nouse), card)
        yield Case(PEER, "types", f"{use!r}, not {nouse!r}: {card}", question, wants)


def _placed() -> Iterator[Case]:
    for line in _PLACED.strip().splitlines():
        name, _, rest = line.partition(": ")
        policy, *words, wants = rest.split()
        cards = [word for word in words if "," in word]
        box = used(*(_card(word) for word in cards))
        question = Placing(box, tuple(words[len(cards) :]), policy=policy)
        yield Case(PEER, "fit and score", name, question, wants.replace("|", " | "))
    card = (0, 0, 1280)
    for name, box, annotations in (
        ("another type", used(card, models=("NVIDIA",)), {"use-gpu-type": "OtherType"}),
        ("another UUID", used(card, uuids=("dev-1",)), {"use-gpu-uuid": "dev-0"}),
        ("a UUID ruled out", used(card, uuids=("dev-0",)), {"nouse-gpu-uuid": "dev-0"}),
        ("an unhealthy card", used(card, unhealthy=frozenset({0})), {}),
        (
            "each card for another reason",
            used(
                *[(1, 2048, 8192)] * 3,
                *[(100, 2048, 8192)] * 4,
                *[(1, 8048, 8192)] * 2,
                (90, 2048, 8192),
                uuids=tuple("bqicjuldme"),
            ),
            {"use-gpu-uuid": "a,f,c,d,e,g,h,j,l,u,m"},
        ),
    ):
        question = Placing(box, ("20/1024",), annotations)
        yield Case(PEER, "fit and score", name, question, REFUSED)


def _card(text: str) -> tuple[int, int, int]:
    cores, memory, blocks = map(int, text.split(","))
    return cores, memory, blocks


def _by_links() -> Iterator[Case]:
    """Yield its topology-aware policy; its scores of pairs are NVIDIA's: 100 for each NVLink."""
    three = Machine("three cards", 3, {(0, 1): 1, (0, 2): 2, (1, 2): 1}, {(1, 2): "PIX"})
    star = Machine("a star", 6, {(0, 5): 1, (2, 5): 1})
    lone = Machine("one apart", 6, {(a, b): 1 for b in range(5) for a in range(b)})
    mesh = Machine(
        "four cards", 4, {(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2}
    )
    for machine, size, wants in (
        (three, 1, "1"),
        (three, 2, "0,2"),
        (three, 3, "0,1,2"),
        (Machine("no links", 3), 2, FITS),
        (star, 3, "0,2,5"),
        (lone, 1, "5"),
        (mesh, 4, "0,1,2,3"),
    ):
        question = Placing(whole(machine), (f"{size}00/",))
        yield Case(PEER, "topology", f"{machine.name}, {size}", question, wants)


def _nodes() -> Iterator[Case]:
    empty, half, small = used((0, 0, 8000)), used((50, 4000, 8000)), used((0, 0, 50))
    ten, twenty = used((10, 10, 100)), used((20, 20, 100))
    for name, boxes, pod, policy, wants in (
        ("two alike", (empty, empty), "30/1000", "binpack", "0,1"),
        ("one in use", (half, empty), "30/1000", "binpack", "0"),
        ("both too small", (small, small), "30/1000", "binpack", REFUSED),
        ("binpack", (ten, twenty), "5/5", "binpack", "1"),
        ("binpack, the other way round", (twenty, ten), "5/5", "binpack", "0"),
        ("spread", (twenty, ten), "5/5", "spread", "1"),
        ("spread, the other way round", (ten, twenty), "5/5", "spread", "0"),
    ):
        question = Choice(boxes, (pod,), {"gpu-node-policy": policy})
        yield Case(PEER, "nodes", name, question, wants)
    two = Choice((empty, empty), ("30/1000", "40/1000"))
    yield Case(PEER, "nodes", "two containers", two, "0,1")


def _pods() -> Iterator[Case]:
    for pod, wants in _FOOTPRINTS:
        name = " ".join(pod)
        cards = ((0,),) * len(pod)
        yield Case(PEER, "footprint", f"{name}, by card", Footprint(pod, cards), f"0:{wants}")
        yield Case(PEER, "footprint", f"{name}, in all", Footprint(pod), wants)
    for pod, wants in _WITHOUT_INIT:
        question = Footprint(pod, ((0,),) * len(pod))
        name = f"{' '.join(pod)}, once init containers have ended"
        yield Case(PEER, "footprint", name, question, f"0:{wants}", "init-keeps")
    for containers, wants in _ADMITTED:
        yield Case(PEER, "webhook", " ".join(containers), Admission(containers), wants)
    named = Admission(("100/",), node="test-node")
    yield Case(PEER, "webhook", "a node is named", named, DENIED, "node-named")
