"""A node is chosen as the DaemonSet controller chooses it."""

from typing import Any

import pytest

from view.model.doctor.choice import chooses

LABELS = {"gpus": "true", "count": "8"}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(name: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"nodeSelector": {"gpus": "true"}},
        {"affinity": {"nodeAffinity": {}}},
        required(label("gpus", "In", "true", "yes")),
        required(label("gpus", "NotIn", "false")),
        required(label("other", "NotIn", "true")),
        required(label("gpus", "Exists")),
        required(label("other", "DoesNotExist")),
        required(label("count", "Gt", "7")),
        required(label("count", "Lt", "9")),
        required(named("n1")),
        required(label("other", "Exists"), label("gpus", "Exists")),
    ],
)
def test_chosen(pod: dict[str, Any]) -> None:
    assert chooses(pod, "n1", LABELS)


@pytest.mark.parametrize(
    "pod",
    [
        {"nodeSelector": {"gpus": "true", "other": "true"}},
        {"nodeSelector": {"gpus": "false"}},
        required(),
        required({}),
        required(label("gpus", "In", "yes")),
        required(label("other", "In", "true")),
        required(label("gpus", "NotIn", "true")),
        required(label("other", "Exists")),
        required(label("gpus", "DoesNotExist")),
        required(label("count", "Gt", "8")),
        required(label("other", "Gt", "1")),
        required(label("count", "Lt", "8")),
        required(label("other", "Lt", "1")),
        required(named("n2")),
        required({**label("gpus", "Exists"), **named("n2")}),
        {"nodeSelector": {"other": "true"}, **required(label("gpus", "Exists"))},
    ],
)
def test_not_chosen(pod: dict[str, Any]) -> None:
    assert not chooses(pod, "n1", LABELS)


def test_an_operator_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="the operator Like"):
        chooses(required(label("gpus", "Like", "t")), "n1", LABELS)
