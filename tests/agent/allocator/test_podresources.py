"""Which pod of a name an entry of ``List`` can be, by its containers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.allocator.interfaces import HeldSlots
from placement.pods import PodInfo
from tests.agent.builders import CORE, INIT, MEMORY, SIDECAR, container, ids, listed, view

NOTHING: HeldSlots = {}
WITH_PLAIN = replace(
    view("p", container("c", 30, 8)), mains=frozenset({"c", "plain"}), sidecars=frozenset({"proxy"})
)
WITHOUT_NAMES = view(
    "p", container("i", kind=INIT), container("s", kind=SIDECAR), container("c", 30, 8)
)


@pytest.mark.parametrize(
    ("pod", "names", "may_be"),
    [
        (WITH_PLAIN, "c plain", True),  # an older kubelet
        (WITH_PLAIN, "c plain proxy", True),  # a newer one
        (WITH_PLAIN, "c", False),
        (WITH_PLAIN, "c plain more", False),
        (WITH_PLAIN, "plain proxy", False),
        (WITHOUT_NAMES, "s c other", True),
        (WITHOUT_NAMES, "i c", False),
    ],
)
def test_an_entry_may_be_a_pod_if_it_has_the_known_containers_of_the_pod(
    pod: PodInfo, names: str, may_be: bool
) -> None:
    """Containers without GPUs count, too; ordinary init containers are not listed (K4)."""
    assert listed("p", **dict.fromkeys(names.split(), NOTHING)).may_be(pod) is may_be


@pytest.mark.parametrize(
    ("held", "contradicted"),
    [
        ({}, False),
        ({CORE: ids("GPU-0", range(30))}, False),
        ({CORE: ids("GPU-0", range(30)), MEMORY: ids("GPU-0", range(8))}, False),
        ({CORE: ids("GPU-0", range(29))}, True),
        ({MEMORY: ids("GPU-0", range(9))}, True),
    ],
)
def test_an_entry_with_another_count_than_requested_contradicts_its_pod(
    held: HeldSlots, contradicted: bool
) -> None:
    shown: Mapping[str, HeldSlots] = {"c": held}
    assert listed("p", **shown).contradicts(WITH_PLAIN) is contradicted
    assert not listed("p", other=held).contradicts(WITH_PLAIN)
