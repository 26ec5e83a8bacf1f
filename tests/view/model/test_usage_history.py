"""Usage now and in the last day, summed up."""

from dataclasses import replace

from tests.placement.cluster.builders import NAMES, make_node, make_pod, record
from tests.view import scenes
from view.model.reports import ClusterReport
from view.model.state import ClusterState
from view.model.usage import ContainerUsage, NodeUsage
from view.model.usage_history import GroupBy, History, PastUsage, UsageRow, usage_rows


def report() -> ClusterReport:
    state = ClusterState(NAMES)
    state.put_node(make_node("n1", 2))
    held = {"a": ("GPU-n1-0", 60), "b": ("GPU-n1-1", 40), "lone": ("GPU-n1-1", 10)}
    for name, (uuid, cores) in held.items():
        annotations = record(c0=((uuid,), cores, 1))
        pod = make_pod(name, (cores, 1), node="n1", namespace="team", annotations=annotations)
        if name != "lone":
            scenes.owned(pod, "Job", "train")
        state.put_pod(pod)
    state.put_pod(scenes.waiting("late", (100, 0), (50, 1)))
    return state.report()


USE = {
    "n1": NodeUsage(
        "n1", containers=(ContainerUsage("team", "a", "c0", ("GPU-n1-0",), 60, 0, 15, None),)
    )
}
DAY = History(
    "",
    1000.0,
    600.0,
    (
        PastUsage("team", "a", 4.0, 4.0, 3.0),
        PastUsage("team", "lone", 2.0, None, None),
        PastUsage("team", "deleted", 8.0, 8.0, 0.0),
        PastUsage("team", "odd", None, None, None),
    ),
)


def rows(history: History | None, by: GroupBy, namespace: str = "") -> dict[str, UsageRow]:
    found = usage_rows(report(), USE, history, by, namespace)
    return {each.pod or each.owner or each.namespace: each for each in found}


def test_held_used_and_pending_amounts_are_added_up() -> None:
    pods = rows(DAY, GroupBy.POD)
    assert pods["a"] == UsageRow("team", "Job/train", "a", 0.6, 0.15, 0, 4, 4, 3)
    assert pods["a"].idle_share == 0.75
    assert pods["late"] == UsageRow("default", "", "late", 0, None, 1.5, 0)
    assert set(rows(DAY, GroupBy.OWNER)) == {"Job/train", "lone", "deleted", "odd", "late"}
    team = rows(DAY, GroupBy.NAMESPACE)["team"]
    team = replace(team, held=round(team.held, 3))
    assert team == UsageRow("team", "", "", 1.1, 0.15, 0, 14, 12, 3)
    assert set(rows(DAY, GroupBy.POD, "default")) == {"late"}


def test_unknown_amounts_are_neither_used_nor_idle() -> None:
    pods = rows(DAY, GroupBy.POD)
    assert (pods["lone"].used, pods["lone"].held_hours, pods["lone"].idle_share) == (None, 2, None)
    assert (pods["odd"].held_hours, pods["odd"].idle_share) == (None, None)
    assert pods["deleted"].idle_share == 0
    for unknown in (None, History("no response")):
        assert rows(unknown, GroupBy.POD)["a"] == UsageRow("team", "Job/train", "a", 0.6, 0.15)
