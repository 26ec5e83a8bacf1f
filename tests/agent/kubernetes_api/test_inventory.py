"""The node's inventory: what it says, when it is written, and when again."""

import threading
from dataclasses import replace

import pytest

from agent.errors import Unavailable
from agent.kubernetes_api.client import Gone, Json, Rejected
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, survey
from contract.inventory import (
    Amounts,
    Card,
    Link,
    PublishedInventory,
    decode_inventory,
    encode_inventory,
)
from tests.agent.builders import BLOCK, CORE, MEMORY, device_table
from tests.agent.fakes import DEADLINE_S, NAMES, FakeClock, eventually
from tests.agent.threads import running

PACE = InventoryPace(write=10, freed=1, look=1000, settle=2, renew=300, retry=4.0, retry_most=10.0)


class Writing:
    """A ``NodeApi`` that fails as told, what a look finds, and the writer between them."""

    def __init__(self, *errors: Exception, pace: InventoryPace = PACE) -> None:
        self.errors = list(errors)
        self.found: PublishedInventory | None = None
        self.looked = threading.Semaphore(0)
        self.written: list[PublishedInventory] = []
        self.models: list[str | None] = []
        self.results: list[str] = []
        self.clock = FakeClock()
        self.writer = InventoryWriter(
            api=self,
            node="n1",
            annotation=NAMES.gpu_cards,
            label=NAMES.gpu_model,
            look=self._look,
            pace=pace,
            clock=self.clock,
            on_result=self.results.append,
        )

    def _look(self) -> PublishedInventory | None:
        self.looked.release()
        return self.found

    def patch_node(self, name: str, patch: Json) -> None:
        if self.errors:
            raise self.errors.pop(0)
        assert name == "n1"
        (text,) = patch["metadata"]["annotations"].values()
        self.models.append(patch["metadata"]["labels"][NAMES.gpu_model])
        self.written.append(decode_inventory(text))

    def look(self, found: PublishedInventory | None, later: float = 0.0) -> tuple[int, float]:
        """Look some seconds later; return how much has been written so far, and the pause."""
        self.clock.now += later
        self.found = found
        pause = self.writer.write_due()
        return len(self.written), pause


def state(number: int) -> PublishedInventory:
    return PublishedInventory(number)


def one_card(cores: int, blocks: int = 8, reason: str = "") -> PublishedInventory:
    card = Card("GPU-0", 0, "NVIDIA A30", 8 << 30, None, reason)
    return PublishedInventory(256 << 20, (card,), free=(Amounts(cores, blocks),))


def test_a_survey_has_every_card_with_its_health_its_links_and_what_is_free() -> None:
    inventory = replace(device_table(2).inventory, links=(Link((0, 1), "NV12"),))
    found = survey(
        inventory,
        block=BLOCK,
        unhealthy={"GPU-0": "", "GPU-1": "Xid 79 at 12:00:01"}.__getitem__,
        free={CORE: {"GPU-0": 70, "GPU-1": 100}, MEMORY: {"GPU-0": 3, "GPU-1": 10}},
    )
    assert encode_inventory(found) == (
        '{"memoryBlock":268435456,"cards":['
        '{"uuid":"GPU-0","index":0,"model":"Test","memory":2684354560,"numa":null,'
        '"health":"Healthy","reason":"","freeCores":70,"freeBlocks":3},'
        '{"uuid":"GPU-1","index":1,"model":"Test","memory":2684354560,"numa":null,'
        '"health":"Unhealthy","reason":"Xid 79 at 12:00:01","freeCores":100,"freeBlocks":10}],'
        '"links":[{"cards":[0,1],"kind":"NV12"}]}'
    )
    assert decode_inventory(encode_inventory(found)) == found


# --- when it is written -------------------------------------------------------------------


def test_what_is_new_is_written_no_more_often_than_the_pace_allows() -> None:
    writing = Writing()
    assert writing.look(None) == (0, 2)  # nothing is known
    assert writing.look(state(1)) == (1, 1)
    assert writing.look(state(1), later=1) == (1, 2)
    assert writing.look(state(2), later=1) == (1, 1)
    assert writing.look(state(3), later=7.5) == (1, 0.5)
    assert writing.look(state(3), later=0.5) == (2, 1)
    assert writing.look(None, later=1000) == (2, 2)
    assert writing.written == [state(1), state(3)]
    assert writing.results == ["written"] * 2


def test_the_same_is_written_again_now_and_then() -> None:
    """A node that was deleted and made anew has lost it."""
    writing = Writing()
    writing.look(state(1))
    assert writing.look(state(1), later=299) == (1, 2)
    assert writing.look(state(1), later=450 - 299) == (2, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(one_card(50), one_card(60), id="cores"),
        pytest.param(one_card(50, 4), one_card(40, 5), id="memory"),
        pytest.param(one_card(50, reason="Xid 79"), one_card(50), id="health"),
        pytest.param(PublishedInventory(1), one_card(50), id="a card"),
    ],
)
def test_what_has_become_free_does_not_wait_for_the_pace(
    before: PublishedInventory, after: PublishedInventory
) -> None:
    """What has been taken does, and is written with it."""
    writing = Writing()
    writing.look(before)
    assert writing.look(after, later=1) == (2, 1)
    assert writing.look(one_card(10, 2), later=1) == (2, 1)


def test_the_node_is_labelled_with_the_model_while_there_are_cards() -> None:
    writing = Writing()
    writing.look(one_card(50))
    writing.look(PublishedInventory(1), later=10)
    assert writing.models == ["NVIDIA-A30", None]


@pytest.mark.parametrize(
    "error", [Unavailable("API server: away"), Rejected(404, "not found"), Gone("too old")]
)
def test_what_could_not_be_written_is_tried_ever_more_slowly_as_it_is_then(
    error: Exception,
) -> None:
    writing = Writing(error, error, error)
    pauses = [writing.look(state(number))[1] for number in range(3)]
    for pause, nominal in zip(pauses, (4, 8, 10), strict=True):
        assert nominal <= pause <= nominal * 1.5
    assert writing.look(state(3)) == (1, 1)
    writing.errors = [error]
    assert writing.look(state(4), later=10)[1] <= 4 * 1.5  # as at first
    assert writing.written == [state(3)]
    assert writing.results == [*["retried"] * 3, "written", "retried"]


# --- its thread ---------------------------------------------------------------------------


def test_who_tells_of_a_change_need_not_wait_for_the_next_look() -> None:
    writing = Writing(pace=replace(PACE, settle=0.01))
    with running(writing.writer.run, writing.writer.stop):
        assert writing.looked.acquire(timeout=DEADLINE_S)
        writing.found = state(1)
        writing.writer.poke()
        eventually(lambda: writing.written == [state(1)], "it is written")


def test_what_was_not_written_is_looked_at_again_though_nobody_tells_of_it() -> None:
    writing = Writing(Unavailable("away"), pace=replace(PACE, retry=0.01, freed=0.01))
    writing.found = state(1)
    with running(writing.writer.run, writing.writer.stop):
        eventually(lambda: writing.written == [state(1)], "it is written")
        while writing.looked.acquire(blocking=False):
            pass
        writing.found = state(2)
        writing.writer.poke()
        assert writing.looked.acquire(timeout=DEADLINE_S)  # too early to be written
        writing.clock.now += 10
        eventually(lambda: writing.written == [state(1), state(2)], "it is written")


def test_changes_that_change_nothing_are_not_looked_at_all_the_time() -> None:
    writing = Writing(pace=replace(PACE, settle=1000))
    with running(writing.writer.run, writing.writer.stop):
        assert writing.looked.acquire(timeout=DEADLINE_S)
        writing.writer.poke()
        assert not writing.looked.acquire(timeout=0.1)
