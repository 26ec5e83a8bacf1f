"""The order of a handover's steps, without a kubelet."""

from unittest.mock import Mock

import pytest

from common.handover import hand_over


def _called(resource: Mock) -> list[str]:
    return [name for name, *_ in resource.method_calls]


def test_the_other_plugin_has_its_lists_handled_before_the_streams_end() -> None:
    """Else the kubelet drops its next registration, too (K18)."""
    resource, writes = Mock(held=0), list[str]()
    steps = hand_over([resource], let_register=resource.register, checkpoint=lambda: len(writes))
    held = next(steps)
    assert _called(resource) == ["hold"]
    assert not held.condition()
    resource.held = 1
    assert held.condition()
    for done in (["hold", "register"], ["hold", "register", "end_streams"]):
        listed = next(steps)
        assert _called(resource) == done
        assert not listed.condition()
        writes.append("a list")
        assert listed.condition()
        assert not next(steps).condition()  # time for the next resource's list
    assert next(steps, None) is None
    assert _called(resource) == ["hold", "register", "end_streams", "release"]


def test_held_calls_continue_if_the_registration_fails() -> None:
    resource = Mock(held=0)
    fail = Mock(side_effect=OSError("the kubelet was replaced"))
    steps = hand_over([resource], let_register=fail, checkpoint=lambda: None)
    next(steps)
    with pytest.raises(OSError, match="the kubelet was replaced"):
        next(steps)
    assert _called(resource) == ["hold", "release"]
