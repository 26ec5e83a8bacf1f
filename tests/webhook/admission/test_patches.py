import copy
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import any_json
from webhook.admission.patches import patch_annotations


def test_a_dropped_value_is_never_moved_to_where_the_same_value_is_written() -> None:
    """The library would make a "move" of one of the two, whichever a set gives first."""
    there = {"annotations": {"a": "same", "b": "same"}}
    operations = patch_annotations(there, {"a": None, "b": None, "c": "same"})
    assert [(each["op"], each["path"]) for each in operations] == [
        ("remove", "/metadata/annotations/a"),
        ("remove", "/metadata/annotations/b"),
        ("add", "/metadata/annotations/c"),
    ]


def test_annotations_that_are_right_need_no_patch() -> None:
    assert patch_annotations({"annotations": {"a": "1"}}, {"a": "1", "b": None}) == ()


def _nested(depth: int) -> object:
    value: object = "core"
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_nested_too_deeply_is_replaced() -> None:
    operations = patch_annotations({"annotations": {"a": _nested(5000)}}, {"a": "2"})
    assert list(operations) == [{"op": "replace", "path": "/metadata/annotations/a", "value": "2"}]


KEYS = st.sampled_from(["a", "d/a", "d~a", "d~1a", "~", "/", "", "ä/0", "0", "1"])


@given(
    metadata=st.none()
    | st.fixed_dictionaries(
        {"name": st.just("x")},
        optional={
            "annotations": st.none()
            | st.dictionaries(KEYS, any_json("a") | st.sampled_from(["1", "2"]), max_size=8)
        },
    ),
    changes=st.dictionaries(KEYS, st.none() | st.sampled_from(["1", "2", "false"]), max_size=6),
)
def test_the_patch_applies_and_makes_exactly_the_changes(
    metadata: dict[str, Any] | None, changes: dict[str, str | None]
) -> None:
    pod: dict[str, Any] = {"metadata": metadata, "spec": {"containers": []}}
    before = copy.deepcopy(pod)
    operations: Any = [dict(each) for each in patch_annotations(metadata, changes)]
    after = jsonpatch.apply_patch(pod, operations)
    assert pod == before
    expected = dict((metadata or {}).get("annotations") or {})
    for key, value in changes.items():
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value
    found = after["metadata"] or {}
    assert (found.get("annotations") or {}) == expected
    assert {**found, "annotations": None} == {**(metadata or {}), "annotations": None}
    assert after["spec"] == before["spec"]
