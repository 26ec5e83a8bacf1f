"""Cases of ``NVIDIA/k8s-device-plugin`` (``internal/rm/allocate_test.go``).

A replica of a card is a share of as many hundredths: 4 replicas are shares of 25. A request for
several replicas is a pod of as many containers. Left out: which Xids count (this is the agent's),
MIG, names of resources, feature discovery.
"""

from collections.abc import Iterator

from bench.peers.questions import COUNTS, REFUSED, Placing, used
from bench.peers.verdicts import Case

PEER = "k8s-device-plugin"

# Policy, cards as replicas used of all, replicas wanted, containers on each card expected.
_TABLE = """
one of two cards half used: spread 0/2,1/2 2 1,1
two: spread 0/4,0/4 2 1,1
three: spread 0/2,0/2,0/2 3 1,1,1
four: spread 0/4,0/4 4 2,2
one: spread 0/4 1 1
too many: spread 0/2 5 -
two, one card full: spread 4/4,0/4 2 2
three on three cards: spread 0/4,0/4,0/4 3 1,1,1
two: binpack 0/4,0/4 2 2
three: binpack 0/2,0/2,0/2 3 2,1
four: binpack 0/4,0/4 4 4
five: binpack 0/4,0/4 5 4,1
one: binpack 0/4 1 1
too many: binpack 0/2 5 -
the fuller card: binpack 3/4,1/4 1 card 0
the emptier card: spread 3/4,1/4 1 card 1
"""


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for line in _TABLE.strip().splitlines():
        name, _, rest = line.partition(": ")
        policy, cards, count, expected = rest.split(" ", 3)
        share = 100 // int(cards[2])
        taken = [int(card[0]) * share for card in cards.split(",")]
        box = used(*((each, each, 100) for each in taken))
        wants = REFUSED if expected == "-" else COUNTS + expected
        question = Placing(box, (f"{share}/{share}",) * int(count), policy=policy)
        yield Case(PEER, policy, name, question, wants.removeprefix(COUNTS + "card "))
