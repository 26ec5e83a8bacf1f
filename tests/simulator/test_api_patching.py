from typing import Any

import pytest

from simulator.api.patching import InvalidPatch, apply_json_patch, apply_merge_patch

# The examples of RFC 7386, appendix A, whose target and result are objects.
RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7386)
def test_merge_patches_follow_the_examples_of_the_rfc(
    target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert apply_merge_patch(target, patch) == result


def test_a_json_patch_applies_and_leaves_the_original() -> None:
    target: dict[str, Any] = {"metadata": {"annotations": {}}}
    patch = [{"op": "add", "path": "/metadata/annotations/a~1b", "value": "c"}]
    assert apply_json_patch(target, patch) == {"metadata": {"annotations": {"a/b": "c"}}}
    assert target == {"metadata": {"annotations": {}}}


@pytest.mark.parametrize(
    "patch",
    [
        {},
        "text",
        [1],
        [{}],
        [{"op": "add", "path": "no-slash", "value": 1}],
        [{"op": "add", "path": "/missing/deep", "value": 1}],
        [{"op": "test", "path": "/a", "value": 2}],
        [{"op": "explode", "path": "/a"}],
        [{"op": "replace", "path": "", "value": []}],
    ],
)
def test_a_json_patch_that_does_not_apply_is_refused(patch: object) -> None:
    with pytest.raises(InvalidPatch):
        apply_json_patch({"a": 1}, patch)
