"""The order of a handover's steps, without a kubelet."""

import pytest

from common.handover import hand_over


class Recorder:
    """A resource that records its calls."""

    def __init__(self) -> None:
        self.held = 0
        self.steps: list[str] = []

    def hold(self) -> None:
        self.steps.append("hold")

    def release(self) -> None:
        self.steps.append("release")

    def end_streams(self) -> None:
        self.steps.append("end streams")


def test_the_other_plugin_has_its_lists_handled_before_the_streams_end() -> None:
    """Else the kubelet drops its next registration, too (K18)."""
    resource = Recorder()
    writes = 0

    def write() -> None:
        nonlocal writes
        writes += 1

    steps = hand_over(
        [resource],
        let_register=lambda: resource.steps.append("register"),
        checkpoint=lambda: writes,
    )
    held = next(steps)
    assert resource.steps == ["hold"]
    assert not held.condition()
    resource.held = 1
    assert held.condition()
    for done in (["hold", "register"], ["hold", "register", "end streams"]):
        listed = next(steps)
        assert resource.steps == done
        assert not listed.condition()
        write()
        assert listed.condition()
        assert not next(steps).condition()  # time for the next resource's list
    assert next(steps, None) is None
    assert resource.steps == ["hold", "register", "end streams", "release"]


def test_held_calls_continue_if_the_registration_fails() -> None:
    resource = Recorder()

    def fail() -> None:
        raise OSError("the kubelet was replaced")

    steps = hand_over([resource], let_register=fail, checkpoint=lambda: None)
    next(steps)
    with pytest.raises(OSError, match="the kubelet was replaced"):
        next(steps)
    assert resource.steps == ["hold", "release"]
