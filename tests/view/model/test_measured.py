"""What is measured beside what is held: rounded up, and nothing where nothing is known."""

import pytest

from tests.view.model.test_state import node_in, scene
from view.model.measured import story_with_use, with_use
from view.model.usage import CardUse, ContainerUse, NodeUse

MIB = 1 << 20
USE = NodeUse(
    "n1",
    measured=True,
    cards=(CardUse("GPU-n1-0", 60, 40, 0, 0, 12.4, 300 * MIB),),
    containers=(ContainerUse("default", "train", "c0", ("GPU-n1-0",), 60, 0, 0.2, None),),
)


def test_cards_show_what_is_measured_of_them_rounded_up() -> None:
    report = scene().report()
    node = node_in(with_use(report, {"n1": USE}), "n1")
    assert [(each.cores_used, each.memory_used) for each in node.cards] == [
        (15, 512 * MIB),
        (None, None),
    ]
    assert with_use(report, {}) is report


@pytest.mark.parametrize(("pod", "used"), [("train", (5, None)), ("whole", (None, None))])
def test_a_pods_story_has_the_use_of_its_own_containers(
    pod: str, used: tuple[int | None, int | None]
) -> None:
    story = scene().explain("default", pod)
    assert story is not None
    (container,) = story_with_use(story, {"n1": USE}).pod.containers
    assert (container.cores_used, container.memory_used) == used
    assert story_with_use(story, {}) is story
