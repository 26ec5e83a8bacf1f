"""Which pod of a name an entry of ``List`` can be, by its containers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.allocator.model.containers import Places
from tests.agent.builders import CORE, INIT, MEMORY, SIDECAR, container, ids, listed, view

NOTHING: Places = {}
WITH_PLAIN = replace(
    view("p", container("c", 30, 8)),
    mains=frozenset({"c", "plain"}),
    sidecars=frozenset({"proxy"}),
)
WITHOUT_NAMES = view(
    "p", container("i", kind=INIT), container("s", kind=SIDECAR), container("c", 30, 8)
)


@pytest.mark.parametrize(
    "names", [("c", "plain"), ("c", "plain", "proxy")], ids=["an older kubelet", "a newer one"]
)
def test_an_entry_is_told_by_its_containers_that_ask_for_no_gpu_too(names: tuple[str, ...]) -> None:
    assert listed("p", **dict.fromkeys(names, NOTHING)).may_be(WITH_PLAIN)


@pytest.mark.parametrize("names", [("c",), ("c", "plain", "more"), ("plain", "proxy")])
def test_an_entry_with_fewer_or_other_containers_is_another_pod(names: tuple[str, ...]) -> None:
    assert not listed("p", **dict.fromkeys(names, NOTHING)).may_be(WITH_PLAIN)


def test_where_the_other_containers_are_not_known_those_with_gpus_are_enough() -> None:
    """Ordinary init containers are never among them (K4)."""
    assert listed("p", s=None, c=None, other=None).may_be(WITHOUT_NAMES)
    assert not listed("p", i=None, c=None).may_be(WITHOUT_NAMES)


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
def test_an_entry_that_holds_another_count_than_asked_for_contradicts_its_pod(
    held: Places, contradicted: bool
) -> None:
    shown: Mapping[str, Places] = {"c": held}
    assert listed("p", **shown).contradicts(WITH_PLAIN) is contradicted
    assert not listed("p", other=held).contradicts(WITH_PLAIN)
