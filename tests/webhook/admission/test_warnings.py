from typing import Any

import pytest

from contract.demand import ContainerDemand, ContainerKind, Demand, PodDemand
from contract.names import Names
from webhook.admission.warnings import advise

NAMES = Names()


def _advise(
    *asked: Demand, annotations: dict[str, object] | None = None, name: str = "main", **given: Any
) -> list[str]:
    containers = (ContainerDemand(name, ContainerKind.MAIN, 0, demand) for demand in asked)
    known: dict[str, Any] = {"largest_card": 0, "path": ""} | given
    return list(advise(PodDemand(tuple(containers)), annotations or {}, names=NAMES, **known))


@pytest.mark.parametrize(
    ("cores", "memory", "largest"),
    [(50, 8, 0), (100, 0, 0), (300, 7, 0), (50, 96, 96), (200, 192, 96), (0, 8, 0), (50, 97, 0)],
)
def test_what_may_well_be_meant_is_not_commented(cores: int, memory: int, largest: int) -> None:
    assert _advise(Demand(cores, memory), largest_card=largest) == []


@pytest.mark.parametrize(
    ("cores", "limit", "lines"),
    [
        (50, "30", ["container main: 50 cores, vcuda-core-limit leaves it 30"]),
        (50, "50", []),
        (50, "100", []),
        (50, "many", []),  # an error, told as one
        (100, "30", []),
    ],
)
def test_a_limit_below_what_a_share_asks_for_is_said(
    cores: int, limit: str, lines: list[str]
) -> None:
    assert _advise(Demand(cores, 4), annotations={NAMES.core_limit: limit}) == lines
