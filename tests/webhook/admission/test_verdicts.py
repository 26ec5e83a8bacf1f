"""Labels and warnings of verdicts."""

import pytest

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.errors import FieldError
from contract.names import Names
from webhook.admission.decision import Decision, bounded
from webhook.admission.warnings import about_memory, advise


def test_ten_warnings_are_shown_and_the_eleventh_turns_the_tenth_into_a_count() -> None:
    lines = [f"warning {number}" for number in range(12)]
    assert bounded(lines[:10]) == tuple(lines[:10])
    assert bounded(lines) == (*lines[:9], "and 3 more warnings like these")


def test_a_warning_is_cut_at_120_characters() -> None:
    (line,) = bounded(["x" * 121])
    assert line == "x" * 117 + "..."
    assert bounded(["x" * 120]) == ("x" * 120,)


def test_characters_that_break_a_line_are_replaced() -> None:
    assert bounded(["a\nb\x7fc\u2028d"]) == ("a?b?c?d",)


def test_a_verdict_is_named_by_what_it_does() -> None:
    error = FieldError("spec", "no", "b")
    other = FieldError("spec", "no", "a")
    assert Decision().label == "allowed"
    assert Decision(patch=({"op": "add"},)).label == "patched"
    denied = Decision(errors=(error, other, error))
    assert (denied.label, denied.allowed, denied.rules) == ("denied", False, ("a", "b"))


NAMES = Names()


def _advise(
    *demands: Demand,
    annotations: dict[str, object] | None = None,
    name: str = "main",
    largest_card: int = 0,
) -> list[str]:
    containers = (ContainerDemand(name, ContainerKind.MAIN, 0, demand) for demand in demands)
    demand = PodDemand(tuple(containers))
    memory = about_memory(demand, largest_card, in_blocks=True)
    return [*memory, *advise(demand, annotations or {}, names=NAMES)]


@pytest.mark.parametrize(
    ("cores", "memory", "largest"),
    [(50, 8, 0), (100, 0, 0), (300, 7, 0), (50, 96, 96), (200, 192, 96), (0, 8, 0), (50, 97, 0)],
)
def test_a_usual_request_has_no_warning(cores: int, memory: int, largest: int) -> None:
    assert _advise(Demand(cores, memory), largest_card=largest) == []


@pytest.mark.parametrize(
    ("cores", "memory", "largest", "line"),
    [
        (50, 97, 96, "97 memory blocks, but the largest known card has 96"),
        (
            *(50, 2048, 96),
            "2048 memory blocks, but the largest known card has 96: 2048 MiB are 8 of 256 MiB",
        ),
        (50, 2048, 0, "2048 memory blocks of 256 MiB are 512 GiB on one card: 2048 MiB are 8"),
        (200, 16000, 0, "8000 memory blocks of 256 MiB are 2000 GiB on one card: 8000 MiB are 32"),
    ],
)
def test_memory_that_no_card_has_may_be_in_mib(
    cores: int, memory: int, largest: int, line: str
) -> None:
    assert _advise(Demand(cores, memory), largest_card=largest) == [f"container main: {line}"]
    assert _advise(Demand(100, 2 * 97, 2), largest_card=96) == [
        "container main: 97 memory blocks of each of 2 cards, but the largest known card has 96"
    ]
    assert _advise(Demand(100, 2 * 96, 2), largest_card=96) == []
    assert _advise(Demand(800, 8 * 1024)) == [], "1024 blocks are 256 GiB, and some cards have them"


@pytest.mark.parametrize(
    ("demand", "limit", "requested"),
    [
        (Demand(50, 4), "30", "50 cores"),
        *((Demand(50, 4), limit, "") for limit in ("50", "100", "many")),  # the last is an error
        (Demand(100, 4), "30", ""),
        (Demand(100, 4, 2), "50", ""),
        (Demand(100, 4, 2), "49", "50 cores of each of 2 cards"),
    ],
)
def test_a_limit_below_the_request_of_a_share_is_warned_of(
    demand: Demand, limit: str, requested: str
) -> None:
    line = f"container main: {requested}, but vcuda-core-limit allows only {limit}"
    assert _advise(demand, annotations={NAMES.core_limit: limit}) == [line] * bool(requested)
