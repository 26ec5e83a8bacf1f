"""The node object: cordoned cards, and other device plugins that offer them."""

import logging
from collections.abc import Mapping

import pytest

from agent.errors import Unavailable
from agent.kubernetes_api.client import Api, Json, Rejected
from agent.kubernetes_api.node import NodeReader
from tests.agent.fakes import NAMES


class FakeNodeApi(Api):
    def __init__(self) -> None:
        self.found: Json | Exception = {"metadata": {}}

    def get_node(self, name: str) -> Json:
        assert name == "n1"
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def set_annotation(self, text: str | None) -> None:
        self.found = {"metadata": {"annotations": {NAMES.gpu_cordoned: text} if text else {}}}


def unexpected(found: object) -> None:
    pytest.fail(f"reported {found}")


def test_changes_are_reported_and_the_last_state_holds_during_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent.kubernetes_api.node")
    api, reported = FakeNodeApi(), list[frozenset[str]]()
    reader = NodeReader(
        api=api, node="n1", names=NAMES, on_cordon=reported.append, on_others=unexpected
    )
    reader.read()
    assert reported == []
    api.set_annotation(" GPU-1,GPU-0, ")
    reader.read()
    reader.read()
    assert reported == [{"GPU-0", "GPU-1"}]
    for error in (Unavailable("timeout"), Rejected(403, "forbidden"), Rejected(404, "no node")):
        api.found = error
        reader.read()
    assert reported == [{"GPU-0", "GPU-1"}]
    api.set_annotation(None)
    reader.read()
    assert reported == [{"GPU-0", "GPU-1"}, frozenset()]
    assert [each.getMessage() for each in caplog.records] == [
        "cordoned cards",
        "cordoned cards cannot be read",
        "cordoned cards",
    ]


@pytest.mark.parametrize(
    ("allocatable", "mig", "others"),
    [
        ({}, False, {}),
        ({"cpu": "8", "nvidia.com/gpu": "0", NAMES.core: "800"}, False, {}),  # it is off again
        ({"nvidia.com/mig-1g.10gb": "7"}, False, {}),  # cards in MIG mode are not ours
        ({"nvidia.com/mig-1g.10gb": "7"}, True, {"nvidia.com/mig-1g.10gb": 7}),
        ({"nvidia.com/mig-1g.10gb": "0"}, True, {}),
        ({"nvidia.com/gpu": "8"}, False, {"nvidia.com/gpu": 8}),
        ({"nvidia.com/gpu": "many"}, False, {}),
    ],
)
def test_another_device_plugin_shows_in_the_nodes_allocatable_resources(
    *, allocatable: dict[str, str] | None, mig: bool, others: dict[str, int]
) -> None:
    api, reported = FakeNodeApi(), list[Mapping[str, int]]()
    reader = NodeReader(
        api=api, node="n1", names=NAMES, on_cordon=unexpected, on_others=reported.append, mig=mig
    )
    api.found = {"metadata": {}, "status": {"allocatable": allocatable}}
    reader.read()
    reader.read()
    assert reported == ([others] if others else [])
    api.found = {"metadata": {}}
    reader.read()
    assert reported == ([others, {}] if others else [])
