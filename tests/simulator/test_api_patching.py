from typing import Any

import pytest

from simulator.api.patching import InvalidPatch, apply_json_patch, apply_merge_patch


def test_a_patch_applies_and_leaves_the_original() -> None:
    target: dict[str, Any] = {"metadata": {"annotations": {}}}
    patch = [{"op": "add", "path": "/metadata/annotations/a~1b", "value": "c"}]
    assert apply_json_patch(target, patch) == {"metadata": {"annotations": {"a/b": "c"}}}
    assert apply_merge_patch(target, {"metadata": {"annotations": {"a": 1}}}) != target
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
