"""Choosing the node; runs with the unit tests."""

import pytest

from tests.e2e.cluster import Json
from tests.e2e.ground import choose_node


def node(name: str, hostname: str) -> Json:
    addresses = [{"type": "Hostname", "address": hostname}]
    return {"metadata": {"name": name}, "status": {"addresses": addresses}}


ONE = [node("a", "host-a")]
TWO = [*ONE, node("b", "host-b")]


@pytest.mark.parametrize(
    ("nodes", "asked", "host", "expected"),
    [
        (TWO, "b", "host-a", "b"),
        (TWO, "c", "host-a", None),
        (ONE, None, "elsewhere", "a"),
        (TWO, None, "host-b", "b"),
        (TWO, None, "b", "b"),
        (TWO, None, "elsewhere", None),
        ([], None, "a", None),
    ],
)
def test_the_node_is_the_one_asked_for_the_only_one_or_this_host(
    nodes: list[Json], asked: str | None, host: str, expected: str | None
) -> None:
    assert choose_node(nodes, asked, host) == expected
