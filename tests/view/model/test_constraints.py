"""By what a pod chooses nodes besides GPUs: as kube-scheduler decides."""

from typing import Any

import pytest

from tests.placement.cluster.builders import Json, bare_node
from view.model.constraints import read_constraints, read_traits


def node(labels: dict[str, str] | None = None, **spec: Any) -> Json:
    found = bare_node("n1")
    return {**found, "metadata": {**found["metadata"], "labels": labels or {}}, "spec": spec}


def affinity(*expressions: Json, fields: list[Json] | None = None) -> Json:
    return one_of({"matchExpressions": list(expressions), "matchFields": fields or []})


def one_of(*terms: Json) -> Json:
    required = {"nodeSelectorTerms": list(terms)}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"affinity": {"nodeAffinity": {key: required}}}


def says(operator: str, *values: str, key: str = "gen") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


DIFFERS = "required node affinity does not match"
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "on", "kept"),
    [
        ({}, node(), ""),
        ({"nodeSelector": {"pool": "a"}}, node({"pool": "a"}), ""),
        (
            {"nodeSelector": {"pool": "a"}},
            node({"pool": "b"}),
            "node selector pool=a does not match",
        ),
        (affinity(says("In", "5", "6")), node({"gen": "5"}), ""),
        (affinity(says("In", "5")), node(), DIFFERS),
        (affinity(says("NotIn", "5")), node(), ""),
        (affinity(says("NotIn", "5")), node({"gen": "5"}), DIFFERS),
        (affinity(says("Exists")), node({"gen": ""}), ""),
        (affinity(says("DoesNotExist")), node({"gen": ""}), DIFFERS),
        (affinity(says("Gt", "4")), node({"gen": "5"}), ""),
        (affinity(says("Lt", "4")), node({"gen": "5"}), DIFFERS),
        (affinity(says("Gt", "4")), node({"gen": "many"}), DIFFERS),
        (affinity(says("Gt")), node({"gen": "5"}), DIFFERS),
        (affinity(says("Nonsense")), node({"gen": "5"}), DIFFERS),
        (affinity(), node(), DIFFERS),
        (
            one_of({"matchExpressions": [says("In", "9")]}, {"matchExpressions": [says("Exists")]}),
            node({"gen": "5"}),
            "",
        ),
        (one_of(), node({"gen": "5"}), DIFFERS),
        (affinity(fields=[says("In", "n1", key="metadata.name")]), node(), ""),
        (affinity(fields=[says("In", "n2", key="metadata.name")]), node(), DIFFERS),
        ({}, node(unschedulable=True, taints=[UNSCHEDULABLE]), "the node is cordoned"),
        ({"tolerations": [{"operator": "Exists"}]}, node(unschedulable=True, taints=[TAINT]), ""),
        ({}, node(taints=[TAINT]), "taint team=a:NoSchedule is not tolerated"),
        ({}, node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), ""),
        ({"tolerations": [{"key": "team", "value": "a"}]}, node(taints=[TAINT]), ""),
        (
            {"tolerations": [{"key": "team", "value": "b"}]},
            node(taints=[TAINT]),
            "taint team=a:NoSchedule is not tolerated",
        ),
        (
            {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]},
            node(taints=[TAINT]),
            "taint team=a:NoSchedule is not tolerated",
        ),
        ({"nodeSelector": 5, "tolerations": "x", "affinity": []}, node(), ""),
        ({"tolerations": [{"key": 5}, None]}, node(), ""),
    ],
)
def test_a_pod_is_kept_from_nodes_as_the_scheduler_keeps_it(
    spec: Json, on: Json, kept: str
) -> None:
    assert read_constraints(spec).keep_from(read_traits(on)) == kept


def test_what_many_pods_say_is_kept_and_what_takes_much_room_is_not() -> None:
    short, long = {"nodeSelector": {"gen": "2"}}, {"nodeSelector": {"gen": "2" * 5000}}
    assert read_constraints(short) is read_constraints(dict(short))
    assert read_constraints(long) == read_constraints(long)
    assert read_constraints(long) is not read_constraints(long)
