"""Inventories of every shape a node can have, for property tests."""

import string
from itertools import combinations

from hypothesis import strategies as st

from contract.inventory import Card, Inventory, Link

_KINDS = st.sampled_from(["PIX", "PXB", "PHB", "NODE", "SYS"]) | st.integers(0, 999).map(
    lambda lanes: f"NV{lanes}"
)
_PLAIN = string.ascii_letters + string.digits
_ENDS = st.text(_PLAIN, min_size=1, max_size=1)
# Not from_regex: drawing character by character takes ten times as long.
_UUIDS = (
    _ENDS
    | st.builds("MIG-{}".format, _ENDS)
    | st.builds(
        lambda first, middle, last: first + middle + last,
        _ENDS,
        st.text(_PLAIN + "-._", max_size=54),
        _ENDS,
    )
)
_NUMBERS = st.integers(0, 2**31 - 1)


@st.composite
def inventories(draw: st.DrawFn, *, most: int = 5) -> Inventory:
    """Cards with any text a driver or an admin may give, and links between some of them."""
    count = draw(st.integers(1, most))
    uuids = draw(st.lists(_UUIDS, min_size=count, max_size=count, unique=True))
    minors, indices = (
        draw(st.lists(_NUMBERS, min_size=count, max_size=count, unique=True)) for _ in range(2)
    )
    cards = tuple(
        Card(
            uuid=uuid,
            index=index,
            minor=minor,
            model=draw(st.text()),
            memory=draw(st.integers(1, 2**63)),
            numa=draw(st.none() | _NUMBERS),
            bus_id=draw(st.text()),
            device=draw(st.just(f"/dev/nvidia{minor}") | st.text()),
            capabilities=tuple(draw(st.lists(st.text(), max_size=2))),
        )
        for index, uuid, minor in zip(sorted(indices), uuids, minors, strict=True)
    )
    pairs = combinations((card.index for card in cards), 2)
    links = tuple(Link(pair, draw(_KINDS)) for pair in pairs if draw(st.booleans()))
    return Inventory(cards, links)
