"""Which cards an admin has cordoned, as the node says it."""

import logging

import pytest

from agent.errors import Unavailable
from agent.kubernetes_api.client import Json, Rejected
from agent.kubernetes_api.cordon import CordonReader
from tests.agent.fakes import NAMES


class NodeApi:
    """A node with an annotation, or an error."""

    def __init__(self) -> None:
        self.found: Json | Exception = {"metadata": {}}

    def get_node(self, name: str) -> Json:
        assert name == "n1"
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def say(self, text: str | None) -> None:
        self.found = {"metadata": {"annotations": {NAMES.gpu_cordoned: text} if text else {}}}


def test_what_changes_is_told_and_while_nobody_answers_what_was_known_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "agent.kubernetes_api.cordon")
    api, told = NodeApi(), list[frozenset[str]]()
    reader = CordonReader(api=api, node="n1", names=NAMES, on_change=told.append)
    reader.look()
    assert told == []
    api.say(" GPU-1,GPU-0, ")
    reader.look()
    reader.look()
    assert told == [{"GPU-0", "GPU-1"}]
    for error in (Unavailable("timeout"), Rejected(403, "forbidden"), Rejected(404, "no node")):
        api.found = error
        reader.look()
    assert told == [{"GPU-0", "GPU-1"}]
    api.say(None)
    reader.look()
    assert told == [{"GPU-0", "GPU-1"}, frozenset()]
    assert [each.getMessage() for each in caplog.records] == [
        "cordoned cards",
        "cordoned cards cannot be read",
        "cordoned cards",
    ]
