"""What the tests of our peers expect, translated: which cards, which node.

Cards are digits: ``"045"`` are the cards 0, 4 and 5; an empty text is a refusal. Sources, by peer:

- NVIDIA's go-gpuallocator: ``besteffort_test.go``, ``staticdgx_test.go``, ``simple_test.go``.
- gpu-manager: ``pkg/algorithm/nvidia/{fragment,link,share}_test.go``,
  ``pkg/services/allocator/nvidia/allocator_test.go``.
- gpu-admission: ``pkg/predicate/gpu_predicate_test.go``.
- HAMi: ``pkg/device/nvidia/device_test.go``, ``TestDevices_Fit``; MiB are read as blocks.

Not translated: what tests the inside of an algorithm (iterators, trees, sorting), requests for no
or fewer than no cards, recovery of a checkpoint, what deletes refused pods, shares of several cards
in one container, percentages, and other makers' devices.
"""

from typing import NamedTuple

NVIDIA, MANAGER, ADMISSION, HAMI = "go-gpuallocator", "gpu-manager", "gpu-admission", "HAMi"


class Choice(NamedTuple):
    """Whole cards of one request.

    Attributes:
        peer: whose test.
        policy: which of the peer's policies.
        machine: a key of :data:`bench.linkquality.MACHINES`.
        free: the free cards.
        must: those that have to be among the chosen.
        size: how many are asked for.
        expected: what the peer chooses.
    """

    peer: str
    policy: str
    machine: str
    free: str
    must: str
    size: int
    expected: str


class Row(NamedTuple):
    """Requests for whole cards one after the other, each ``size:expected``."""

    peer: str
    policy: str
    machine: str
    requests: str


class Pods(NamedTuple):
    """Pods one after the other on equal nodes.

    Attributes:
        peer: whose test.
        policy: what it tests.
        nodes: how many nodes.
        cards: of each node.
        blocks: memory blocks of each card.
        pods: containers as ``cores/blocks``; ``-`` before a number ends the pod of that place.
        expected: the node of each pod and the cards of its containers, ``0:01,2``.
    """

    peer: str
    policy: str
    nodes: int
    cards: int
    blocks: int
    pods: tuple[str, ...]
    expected: tuple[str, ...]


class Fitting(NamedTuple):
    """A container on one node.

    Attributes:
        peer: whose test.
        policy: what it tests.
        cards: free cores and blocks of each, and all its blocks, ``50/64/128``; ``ill`` for one
            that may not be given out.
        wish: an annotation and its value, ``use-gpu-uuid=n0-0``; empty for none.
        asked: ``cores/blocks``.
        fits: whether the peer places it.
        purpose: where our docs say why we decide otherwise.
    """

    peer: str
    policy: str
    cards: tuple[str, ...]
    wish: str
    asked: str
    fits: bool
    purpose: str = ""


_ALL = "01234567"

CHOICES = (
    *(
        Choice(NVIDIA, "best effort", "DGX-1 Volta", *rest)
        for rest in (
            ("0245", "", 2, "45"),
            ("0456", "", 2, "56"),
            ("013", "", 2, "03"),
            ("014", "", 2, "04"),
            (_ALL, "4", 1, "4"),
            (_ALL, "4", 2, "47"),
            (_ALL, "4", 4, "4567"),
            ("1234567", "0123", 4, ""),
            (_ALL, "0246", 4, "0246"),
            (_ALL, "123456", 4, ""),
            ("12345", "123456", 1, ""),
        )
    ),
    *(
        Choice(NVIDIA, "static DGX-1", "DGX-1 Volta", *rest)
        for rest in (
            (_ALL, "4", 1, "4"),
            (_ALL, "4", 2, "47"),
            (_ALL, "4", 4, "4567"),
            ("1234567", "0123", 4, ""),
            (_ALL, "0246", 4, ""),
            (_ALL, "4567", 4, "4567"),
            (_ALL, "123456", 4, ""),
        )
    ),
    *(
        Choice(NVIDIA, "static DGX-1", machine, _ALL, "", size, "")
        for machine in ("DGX-1 Pascal", "DGX-1 Volta")
        for size in (3, 5, 6, 7, 9)
    ),
    *(Choice(NVIDIA, "simple", "DGX-1 Volta", _ALL, "", size, _ALL[:size]) for size in range(1, 9)),
    *(
        Choice(NVIDIA, "simple", "DGX-1 Volta", *rest)
        for rest in (
            (_ALL, "4", 1, "4"),
            (_ALL, "4", 2, "04"),
            (_ALL, "4", 4, "0124"),
            ("1234567", "0123", 4, ""),
            (_ALL, "0246", 4, "0246"),
            (_ALL, "123456", 4, ""),
        )
    ),
    Choice(MANAGER, "fragment", "six cards over PCIe", "012345", "", 2, "45"),
    Choice(MANAGER, "fragment", "six cards over PCIe", "01235", "", 1, "5"),
    Choice(MANAGER, "link", "six cards over PCIe", "012345", "", 3, "012"),
    Choice(MANAGER, "link", "six cards over PCIe", "01345", "", 2, "01"),
)

_ONES = "1:0 1:1 1:2 1:3 1:4 1:5 1:6 1:7 1:"

ROWS = (
    Row(NVIDIA, "best effort", "4 RTX 8000", "1:0 1:1 1:2 1:3 1:"),
    Row(NVIDIA, "best effort", "4 RTX 8000", "2:03 2:12 1:"),
    Row(NVIDIA, "best effort", "4 RTX 8000", "4:0123 1:"),
    *(
        Row(NVIDIA, policy, machine, requests)
        for policy in ("best effort", "static DGX-1")
        for machine, pairs in (
            ("DGX-1 Pascal", "2:02 2:13 2:46 2:57 1:"),
            ("DGX-1 Volta", "2:03 2:12 2:47 2:56 1:"),
        )
        for requests in (_ONES, pairs, "4:0123 4:4567 1:", f"8:{_ALL} 1:")
    ),
)

PODS = (
    Pods(
        ADMISSION,
        "a pod after the other",
        *(3, 2, 4),
        ("10/1 10/1", "100/3 80/3", "200/10 0/0", "10/2 0/0"),
        ("0:0,0", "1:0,1", "2:01,", "0:0,"),
    ),
    Pods(
        MANAGER,
        "allocator",
        *(1, 6, 4),
        ("300/3 0/0", "100/1 100/1", "100/1", "-1", "50/1", "60/1", "50/1", "-5", "100/1"),
        ("0:012,", "0:3,4", "0:5", "", "0:3", "0:4", "0:3", "", "0:4"),
    ),
    Pods(MANAGER, "six cards", *(1, 6, 4), ("600/3 0/0",), ("0:012345,",)),
    Pods(MANAGER, "share", *(1, 6, 1024), ("50/0", "60/0"), ("0:0", "0:1")),
)

FITTINGS = tuple(
    Fitting(HAMI, "fit", *rest)
    for rest in (
        (("100/128/128", "100/128/128"), "", "50/64", True),
        (("100/128/128",), "", "50/512", False),
        (("0/1024/1024",), "", "50/512", False),
        (("100/1280/1280",), "use-gpu-uuid=other", "50/512", False),
        (("100/1280/1280",), "nouse-gpu-uuid=n0-0", "50/512", False),
        (("100/1280/1280",), "", "120/512", True, "migrate.md#resources"),
        (("80/1280/1280",), "", "100/512", False),
        (("0/1280/1280",), "", "1/512", False),
        (("90/1280/1280",), "", "200/512", False),
        (("100/1280/1280", "100/1280/1280"), "", "300/512", False),
        (("ill",), "", "20/128", False),
    )
)
