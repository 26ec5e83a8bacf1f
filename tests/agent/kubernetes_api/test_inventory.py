"""The node's inventory: what it says, when it is written, and when again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from agent.errors import Unavailable
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, survey
from contract.inventory import NodeCard, NodeCards, decode_inventory, encode_inventory
from placement.cards import Link
from tests.agent.builders import BLOCK, CORE, MEMORY, device_table
from tests.agent.fakes import NAMES, eventually
from tests.agent.threads import running

NODE = "/api/v1/nodes/n1"
FAST = InventoryPace(write=0.0, look=0.01, settle=0.005, renew=1000.0, retry=0.005, retry_most=0.02)
"""Looks all the time, and writes what is new at once."""


class FakeNodeApi:
    """A ``NodeApi`` that fails as told, then takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tries: list[float] = []
        self.written: list[NodeCards] = []
        self.models: list[str | None] = []

    def patch_node(self, name: str, patch: Json) -> None:
        self.tries.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        assert name == "n1"
        assert patch.keys() == {"metadata"}
        (text,) = patch["metadata"]["annotations"].values()
        self.models.append(patch["metadata"]["labels"][NAMES.gpu_model])
        self.written.append(decode_inventory(text))


class Cards:
    """What a look finds."""

    def __init__(self, found: NodeCards | None) -> None:
        self.found = found
        self.looks = 0

    def __call__(self) -> NodeCards | None:
        self.looks += 1
        return self.found


def state(number: int) -> NodeCards:
    return NodeCards(number)


@contextmanager
def writing(writer: InventoryWriter) -> Iterator[InventoryWriter]:
    with running(writer.run, writer.stop):
        yield writer


def writer_to(
    api: FakeNodeApi | Api,
    cards: Callable[[], NodeCards | None],
    pace: InventoryPace = FAST,
    results: list[str] | None = None,
) -> InventoryWriter:
    return InventoryWriter(
        api=api,
        node="n1",
        annotation=NAMES.gpu_cards,
        label=NAMES.gpu_model,
        look=cards,
        pace=pace,
        on_result=([] if results is None else results).append,
    )


def rounds(cards: Cards, more: int = 3) -> None:
    goal = cards.looks + more
    eventually(lambda: cards.looks >= goal, "it looks")


# --- what it says -------------------------------------------------------------------------


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


# --- when it is written -------------------------------------------------------------------


def test_it_is_written_once_and_again_when_it_changes() -> None:
    api, cards, results = FakeNodeApi(), Cards(state(1)), list[str]()
    with writing(writer_to(api, cards, results=results)):
        eventually(lambda: api.written == [state(1)], "it is written")
        rounds(cards)
        assert api.written == [state(1)]
        cards.found = state(2)
        eventually(lambda: api.written == [state(1), state(2)], "what is new is written")
    assert results == ["written", "written"]


def test_the_node_is_labelled_with_the_model_while_there_are_cards() -> None:
    card = NodeCard("GPU-0", 0, "NVIDIA A30", 1, None, "", 100, 1)
    api, cards = FakeNodeApi(), Cards(NodeCards(1, (card,)))
    with writing(writer_to(api, cards)):
        eventually(lambda: api.models == ["NVIDIA-A30"], "it is labelled")
        cards.found = NodeCards(1)
        eventually(lambda: api.models == ["NVIDIA-A30", None], "the label is removed")


def test_nothing_is_written_while_nothing_is_known() -> None:
    api, cards = FakeNodeApi(), Cards(None)
    with writing(writer_to(api, cards)):
        rounds(cards)
        assert not api.tries
        cards.found = state(1)
        eventually(lambda: api.written == [state(1)], "it is written")
        cards.found = None
        rounds(cards)
    assert api.written == [state(1)]


def test_who_tells_of_a_change_need_not_wait_for_the_next_look() -> None:
    api, cards = FakeNodeApi(), Cards(state(1))
    with writing(writer_to(api, cards, replace(FAST, look=1000.0))) as writer:
        eventually(lambda: api.written == [state(1)], "it is written")
        cards.found = state(2)
        writer.poke()
        eventually(lambda: api.written == [state(1), state(2)], "what is new is written")


def test_two_writes_are_never_closer_than_the_pace_however_much_changes() -> None:
    api, cards = FakeNodeApi(), Cards(state(0))
    with writing(writer_to(api, cards, replace(FAST, write=0.1, look=0.1))) as writer:
        eventually(lambda: len(api.written) == 1, "the first comes at once")
        number = 0
        while len(api.written) < 3:
            number += 1
            cards.found = state(number)
            writer.poke()
            assert number < 10**7
    gaps = [later - earlier for earlier, later in zip(api.tries, api.tries[1:], strict=False)]
    assert min(gaps) >= 0.09, gaps


def one_card(cores: int, blocks: int = 8, reason: str = "") -> NodeCards:
    card = NodeCard("GPU-0", 0, "Fake", 8 << 30, None, reason, cores, blocks)
    return NodeCards(256 << 20, (card,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(one_card(50), one_card(60), id="cores"),
        pytest.param(one_card(50, 4), one_card(40, 5), id="memory"),
        pytest.param(one_card(50, reason="Xid 79"), one_card(50), id="health"),
        pytest.param(NodeCards(1), one_card(50), id="a card"),
    ],
)
def test_what_has_become_free_does_not_wait_for_the_pace(
    before: NodeCards, after: NodeCards
) -> None:
    """What has been taken does, and is written with it."""
    api, cards = FakeNodeApi(), Cards(before)
    slow = replace(FAST, write=1000.0, freed=0.01)
    with writing(writer_to(api, cards, slow)) as writer:
        eventually(lambda: api.written == [before], "the first comes at once")
        cards.found = after
        writer.poke()
        eventually(lambda: api.written == [before, after], "more is to be had")
        cards.found = one_card(10, 2)
        writer.poke()
        rounds(cards)
    assert api.written == [before, after]


def test_changes_that_change_nothing_are_not_looked_at_all_the_time() -> None:
    api, cards = FakeNodeApi(), Cards(state(1))
    with writing(writer_to(api, cards, replace(FAST, settle=0.1, look=0.1))) as writer:
        eventually(lambda: api.written, "it is written")
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            writer.poke()
    assert cards.looks < 8


def test_the_same_is_written_again_now_and_then() -> None:
    """A node that was deleted and made anew has lost it."""
    api, cards = FakeNodeApi(), Cards(state(1))
    with writing(writer_to(api, cards, replace(FAST, renew=0.02))):
        eventually(lambda: api.written[:3] == [state(1)] * 3, "it is written again")


# --- when it cannot be written ------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [Unavailable("API server: away"), Rejected(404, "not found"), Gone("too old")]
)
def test_what_could_not_be_written_is_tried_again_as_it_is_then(error: Exception) -> None:
    api, results, first = FakeNodeApi(error, error), list[str](), iter([state(1)])
    pace = replace(FAST, look=1000.0, retry=0.05, retry_most=0.05)
    with writing(writer_to(api, lambda: next(first, state(2)), pace, results)):
        eventually(lambda: results == ["retried", "retried", "written"], "it is written")
    assert api.written == [state(2)]


def test_it_is_tried_again_ever_more_slowly_and_then_as_at_first() -> None:
    api = FakeNodeApi(*[Unavailable("API server: away")] * 4)
    cards = Cards(state(1))
    with writing(writer_to(api, cards, replace(FAST, retry=0.02, retry_most=0.08))):
        eventually(lambda: api.written, "it is written")
        api.errors = [Unavailable("API server: away")]
        cards.found = state(2)
        eventually(lambda: len(api.written) == 2, "it is written")
    gaps = [later - earlier for earlier, later in zip(api.tries, api.tries[1:], strict=False)]
    for gap, least in zip(gaps[:4], (0.02, 0.04, 0.08, 0.08), strict=True):
        assert gap >= least * 0.9
