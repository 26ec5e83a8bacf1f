"""What a topology manager concludes from devices that name NUMA nodes (K23)."""

import pytest

from simulator.kubelet.numa import Device
from simulator.kubelet.topology import Hint, TopologyPolicy, align, hints_for

BOTH, ZERO, ONE = frozenset({0, 1}), frozenset({0}), frozenset({1})
DEVICES = {str(n): Device(str(n), nodes=(n // 4,)) for n in range(8)}


@pytest.mark.parametrize(
    ("available", "reusable", "size", "expected"),
    [
        ("01234567", "", 2, [Hint(ZERO, True), Hint(ONE, True), Hint(BOTH, False)]),
        ("0456", "", 2, [Hint(ONE, True), Hint(BOTH, False)]),
        ("01234567", "", 5, [Hint(BOTH, True)]),
        ("04", "", 2, [Hint(BOTH, False)]),
        ("04", "", 3, []),
        ("4567", "01", 2, [Hint(ZERO, True), Hint(BOTH, False)]),
    ],
)
def test_nodes_with_devices_enough_are_named_the_fewest_preferred(
    available: str, reusable: str, size: int, expected: list[Hint]
) -> None:
    assert hints_for(DEVICES, available, reusable, size, BOTH) == expected


AT_0, AT_1, AT_BOTH = Hint(ZERO, True), Hint(ONE, True), Hint(BOTH, False)


@pytest.mark.parametrize(
    ("policy", "hints", "expected"),
    [
        ("none", [[AT_0]], (None, True)),
        ("best-effort", [[AT_0, AT_1, AT_BOTH], [AT_1, AT_BOTH]], (ONE, True)),
        ("best-effort", [[AT_0, AT_1, AT_BOTH], None], (ZERO, True)),
        ("best-effort", [[AT_BOTH], [AT_BOTH]], (None, True)),
        ("best-effort", [[]], (None, True)),
        ("restricted", [[AT_BOTH]], (None, False)),
        ("restricted", [[Hint(BOTH, True)]], (None, True)),
        ("restricted", [[AT_0], [AT_1]], (None, False)),
        ("single-numa-node", [[Hint(BOTH, True)]], (None, False)),
        ("single-numa-node", [[AT_0, AT_BOTH], [AT_0, AT_1]], (ZERO, True)),
        ("single-numa-node", [None, None], (None, True)),
        ("single-numa-node", [], (None, True)),
    ],
)
def test_hints_are_merged_and_the_policy_admits(
    policy: TopologyPolicy,
    hints: list[list[Hint] | None],
    expected: tuple[frozenset[int] | None, bool],
) -> None:
    assert align(policy, hints, BOTH) == expected
