"""PodDisruptionBudgets: which pods they cover, and how many may be evicted."""

import pytest

from scheduler.budgets import matches, read_budgets
from tests.placement.cluster.builders import Json

LABELS = {"app": "x", "tier": "web"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"app": "x"}}, True),
        ({"matchLabels": {"app": "x", "tier": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["y"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["y"]}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "In", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "no", "operator": "Newer"}]}, True),
    ],
)
def test_a_selector_selects_as_in_kubernetes(selector: Json, selected: bool) -> None:
    assert matches(selector, LABELS) == selected


def _budget(generation: int, spec: Json | None = None, **status: int) -> Json:
    metadata = {"name": "b", "namespace": "team", "generation": generation}
    return {"metadata": metadata, "spec": {"selector": {}} if spec is None else spec} | (
        {"status": status} if status else {}
    )


def test_a_budget_that_is_not_up_to_date_allows_nothing() -> None:
    budgets = read_budgets(
        [
            _budget(1, disruptionsAllowed=2, observedGeneration=1),
            _budget(2, disruptionsAllowed=2, observedGeneration=1),
            _budget(1),
        ]
    )
    assert [each.allowed for each in budgets] == [2, 0, 0]


def test_a_budget_covers_pods_of_its_namespace_and_without_a_selector_none() -> None:
    everything, nothing = read_budgets([_budget(1), _budget(1, {})])
    assert everything.key == "team/b"
    assert everything.covers("team", LABELS)
    assert not everything.covers("other", LABELS)
    assert not nothing.covers("team", LABELS)
