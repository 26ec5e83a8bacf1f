"""The node's inventory: its content, and when it is written."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Unavailable
from agent.kubernetes_api.client import Api, Gone, Json, Rejected
from agent.kubernetes_api.inventory import InventoryPace, InventoryWriter, model_label, survey
from contract.inventory import (
    Amounts,
    Card,
    Link,
    PublishedInventory,
    decode_inventory,
    encode_inventory,
)
from contract.wishes import read_wishes
from tests.agent.builders import BLOCK, CORE, MEMORY, device_table
from tests.agent.fakes import NAMES, FakeClock

PACE = InventoryPace(write=10, freed=1, check=1000, renew=300, retry=4.0, retry_most=10.0)


class Writing(Api):
    """An API server with given failures, an observed inventory, and the writer between them."""

    def __init__(self, *errors: Exception, pace: InventoryPace = PACE) -> None:
        self.errors = list(errors)
        self.found: PublishedInventory | None = None
        self.surveys = 0
        self.written: list[PublishedInventory] = []
        self.models: list[str | None] = []
        self.results: list[str] = []
        self.clock = FakeClock()
        self.writer = InventoryWriter(
            api=self,
            node="n1",
            annotation=NAMES.gpu_cards,
            label=NAMES.gpu_model,
            survey=self._survey,
            pace=pace,
            clock=self.clock,
            on_result=self.results.append,
        )

    def _survey(self) -> PublishedInventory | None:
        self.surveys += 1
        return self.found

    def patch_node(self, name: str, patch: Json) -> None:
        if self.errors:
            raise self.errors.pop(0)
        assert name == "n1"
        (text,) = patch["metadata"]["annotations"].values()
        self.models.append(patch["metadata"]["labels"][NAMES.gpu_model])
        self.written.append(decode_inventory(text))

    def report(self, found: PublishedInventory | None, later: float = 0.0) -> int:
        """Report a change, some seconds later; return how much has been written by then."""
        self.clock.now += later
        self.found = found
        self.writer.poke()
        return self.catch_up()

    def catch_up(self, later: float = 0.0) -> int:
        """Write what is due, some seconds later; return how much has been written by then."""
        self.clock.now += later
        while (pause := self.writer.pause()) is not None and pause <= 0:
            self.writer.write_next()
        return len(self.written)


def state(number: int) -> PublishedInventory:
    return PublishedInventory(number)


def one_card(cores: int, blocks: int = 8, reason: str = "") -> PublishedInventory:
    card = Card("GPU-0", 0, "NVIDIA A30", 8 << 30, None, reason)
    return PublishedInventory(256 << 20, (card,), free=(Amounts(cores, blocks),))


def test_a_survey_has_every_card_with_its_health_links_and_free_amounts() -> None:
    inventory = replace(device_table(2).inventory, links=(Link((0, 1), "NV12"),))
    found = survey(
        inventory,
        block=BLOCK,
        unhealthy={"GPU-0": "", "GPU-1": "Xid 79 at 12:00:01"}.__getitem__,
        cordoned={"GPU-0"},
        free={CORE: {"GPU-0": 70, "GPU-1": 100}, MEMORY: {"GPU-0": 3, "GPU-1": 10}},
    )
    healthy, unhealthy = (replace(each, minor=0, device="") for each in inventory.cards)
    healthy = replace(healthy, cordoned=True)
    unhealthy = replace(unhealthy, unhealthy="Xid 79 at 12:00:01")
    free = Amounts(70, 3), Amounts(100, 10)
    assert found == PublishedInventory(BLOCK, (healthy, unhealthy), inventory.links, free)
    assert decode_inventory(encode_inventory(found)) == found


def test_changes_are_written_no_more_often_than_the_pace_allows() -> None:
    writing = Writing()
    assert writing.report(None) == 0  # nothing is known
    assert writing.report(state(1), later=1) == 1
    assert writing.report(state(1), later=1) == 1
    assert writing.report(state(2), later=1) == 1
    assert writing.report(state(3), later=7.5) == 1
    assert writing.catch_up(later=1) == 2  # though no change is reported any more
    assert writing.report(None, later=1000) == 2
    assert writing.written == [state(1), state(3)]
    assert writing.results == ["written"] * 2


def test_an_unchanged_inventory_is_written_again_after_a_while() -> None:
    """A node that was deleted and made anew has lost it."""
    writing = Writing(pace=replace(PACE, check=10))
    writing.report(state(1))
    assert writing.catch_up(later=299) == 1
    assert writing.catch_up(later=450 - 299) == 2


def test_unannounced_changes_are_found_by_regular_observation() -> None:
    writing = Writing()
    writing.report(state(1))
    writing.found = state(2)
    assert writing.catch_up(later=999) == 1
    assert writing.catch_up(later=1) == 2
    writing.found = state(3)
    assert writing.catch_up(later=1000) == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(one_card(50), one_card(60), id="cores"),
        pytest.param(one_card(50, 4), one_card(40, 5), id="memory"),
        pytest.param(one_card(50, reason="Xid 79"), one_card(50), id="health"),
        pytest.param(PublishedInventory(1), one_card(50), id="a card"),
    ],
)
def test_freed_amounts_are_published_without_delay(
    before: PublishedInventory, after: PublishedInventory
) -> None:
    """Taken amounts wait, and are written with them."""
    writing = Writing()
    writing.report(before)
    assert writing.report(after, later=0.5) == 1
    assert writing.catch_up(later=0.5) == 2
    assert writing.report(one_card(10, 2), later=1) == 2


def test_the_node_is_labelled_with_the_model_while_there_are_cards() -> None:
    writing = Writing()
    writing.report(one_card(50))
    writing.report(PublishedInventory(1), later=10)
    assert writing.models == ["NVIDIA-A30", None]


@pytest.mark.parametrize(
    "error", [Unavailable("API server: no response"), Rejected(404, "not found"), Gone("too old")]
)
def test_a_failed_write_is_retried_with_growing_pauses_and_the_newest_state(
    error: Exception,
) -> None:
    writing = Writing(error, error, error)
    writing.report(state(0))
    for number, nominal in enumerate((4, 8, 10), start=1):
        assert len(writing.errors) == 3 - number
        writing.report(state(number), later=nominal - 0.1)  # a change does not make it sooner
        assert len(writing.errors) == 3 - number
        writing.catch_up(later=nominal / 2 + 0.1)
    assert writing.written == [state(3)]
    writing.errors = [error]
    writing.report(state(4), later=10)
    assert writing.errors == []
    assert writing.catch_up(later=6) == 2  # as at first
    assert writing.results == [*["retried"] * 3, "written", "retried", "written"]


def test_reports_without_a_change_do_not_cause_a_check_each() -> None:
    writing = Writing()
    writing.report(None)
    for _ in range(9):
        writing.report(None, later=0.1)
    assert writing.surveys == 1
    writing.report(None, later=0.1)
    assert writing.surveys == 2


_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""What an API server takes as a label's value, up to 63 characters."""


@pytest.mark.parametrize(
    ("models", "value"),
    [
        (["NVIDIA A100-SXM4-80GB"] * 8, "NVIDIA-A100-SXM4-80GB"),
        (["Tesla T4", ""], "Tesla-T4"),
        (["NVIDIA A30", "NVIDIA A100 80GB PCIe"], "mixed"),
        (["(R) GPU "], "R-GPU"),
        (["x" * 62 + ".y"], "x" * 62),
        (["\n", "é"], None),
        ([], None),
    ],
)
def test_the_label_is_the_model_as_far_as_labels_allow(
    models: list[str], value: str | None
) -> None:
    assert model_label(models) == value


@given(st.text(max_size=96))
def test_a_wish_in_the_form_of_the_label_selects_the_card(model: str) -> None:
    value = model_label([model])
    if value is not None:
        wishes, errors = read_wishes({NAMES.use_gpu_type: value}, NAMES)
        assert (wishes.excludes(model=model, uuid="GPU-1"), errors) == ("", ())


@given(st.lists(st.text(), max_size=3))
def test_whatever_the_models_the_api_server_takes_the_label(models: list[str]) -> None:
    value = model_label(models)
    assert value is None or (value and len(value) <= 63 and _VALUE.fullmatch(value))
