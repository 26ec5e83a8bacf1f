import copy
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.bindings import mutate_binding, stamp_binding
from webhook.admission.reviews import Review, Target
from webhook.admission.verdicts import Verdict

Json = dict[str, Any]
NAMES = Names()
TIME = 1_700_000_000_000_000_000
STAMPS = {
    "tencent.com/predicate-time": str(TIME),
    "tencent.com/bind-order": "01700000000000000000-w1-00000000",
    "tencent.com/predicate-node": "node-1",
}
BINDING: Json = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "train", "namespace": "team", "uid": "u-1"},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
}


def _stamp(binding: Json) -> Verdict:
    return stamp_binding(binding, names=NAMES, stamp=lambda: OrderStamp(TIME, "w1", 0))


def _apply(binding: Json, verdict: Verdict) -> Json:
    operations: Any = [dict(each) for each in verdict.patch]
    patched: Json = jsonpatch.apply_patch(binding, operations)
    return patched


def _never() -> OrderStamp:
    raise AssertionError("no stamp is due")


@pytest.fixture
def binding() -> Json:
    return copy.deepcopy(BINDING)


@pytest.mark.parametrize("kind", ["Node", "", None])
def test_a_binding_gets_line_time_and_node_and_nothing_else(binding: Json, kind: object) -> None:
    binding["target"]["kind"] = kind
    verdict = _stamp(binding)
    assert (verdict.label, verdict.warnings) == ("patched", ())
    expected = copy.deepcopy(binding)
    expected["metadata"]["annotations"] = STAMPS
    assert _apply(binding, verdict) == expected


def test_stamps_of_somebody_else_are_overwritten_and_other_annotations_stay(binding: Json) -> None:
    mine = {"tencent.com/predicate-gpu-idx-0": "1", "tencent.com/gpu-assigned": "false"}
    binding["metadata"]["annotations"] = dict.fromkeys(STAMPS, "theirs") | mine
    assert _apply(binding, _stamp(binding))["metadata"]["annotations"] == STAMPS | mine


def test_a_second_call_for_the_same_binding_applies_as_well(binding: Json) -> None:
    once = _apply(binding, _stamp(binding))
    later = OrderStamp(TIME + 5, "w2", 0)
    verdict = stamp_binding(once, names=NAMES, stamp=lambda: later)
    assert verdict.warnings == ()
    found = _apply(once, verdict)["metadata"]["annotations"]
    assert found["tencent.com/bind-order"] == later.encode()
    assert found["tencent.com/predicate-node"] == "node-1"


@pytest.mark.parametrize(
    ("field", "value", "warning"),
    [
        ("target", None, "target.name: null is no node: bound without stamps"),
        ("target", [], "target.name: null is no node: bound without stamps"),
        ("target", {}, "target.name: null is no node: bound without stamps"),
        ("target", {"name": ""}, 'target.name: "" is no node: bound without stamps'),
        ("target", {"name": 7}, "target.name: 7 is no node: bound without stamps"),
        (
            "target",
            {"name": "n", "kind": "Pod"},
            'target.kind: "Pod" is no node: bound without stamps',
        ),
        ("metadata", [], "metadata: a list is no mapping: bound without stamps"),
        (
            "metadata",
            {"annotations": "x"},
            'metadata.annotations: "x" is no mapping: bound without stamps',
        ),
    ],
)
def test_what_cannot_be_stamped_is_bound_all_the_same(
    binding: Json, field: str, value: object, warning: str
) -> None:
    binding[field] = value
    verdict = stamp_binding(binding, names=NAMES, stamp=_never)
    assert verdict == Verdict(warnings=(warning,))


def _review(binding: Json | None, **changes: Any) -> Review:
    whole: dict[str, Any] = {
        "uid": "u",
        "target": Target("", "v1", "pods", "Binding", "binding"),
        "operation": "CREATE",
        "namespace": "team",
        "name": "train",
        "dry_run": False,
        "object": binding,
    }
    return Review(**(whole | changes))


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "target",
    [
        Target("", "v1", "pods", "Binding", "binding"),
        Target("", "v1", "pods", "", "binding"),
        Target("", "v1", "bindings", "Binding", ""),
        Target("", "v1", "", "Binding", "binding"),
        Target("", "v1", "", "Binding", ""),
    ],
)
def test_both_ways_to_bind_are_stamped(
    binding: Json,
    target: Target,
    dry_run: bool,
    names: Names,
    stamp: Callable[[], OrderStamp],
) -> None:
    review = _review(binding, target=target, dry_run=dry_run)
    assert mutate_binding(review, names=names, stamp=stamp) == _stamp(binding)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"operation": "UPDATE"}, "UPDATE of v1/pods/binding"),
        ({"operation": "CONNECT", "object": None}, "CONNECT of v1/pods/binding"),
        ({"target": Target("", "v1", "pods", "Pod", "")}, "CREATE of v1/pods"),
        ({"target": Target("", "v1", "pods", "Eviction", "binding")}, "CREATE of v1/pods/binding"),
        (
            {"target": Target("", "v1", "pods", "Eviction", "eviction")},
            "CREATE of v1/pods/eviction",
        ),
    ],
)
def test_anything_else_passes_unread_with_a_warning(
    binding: Json, changes: dict[str, Any], what: str
) -> None:
    verdict = mutate_binding(_review(binding, **changes), names=NAMES, stamp=_never)
    assert verdict == Verdict(
        warnings=(
            f"gpu-turnstile stamps only CREATE of v1/pods/binding here: {what} passed unread",
        )
    )


VALUE = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
ANY = st.recursive(
    VALUE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
)
KEYS = st.sampled_from([*STAMPS, "a/b", "~", "/~1"]) | st.text(max_size=5)
BINDINGS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": ANY
        | st.fixed_dictionaries(
            {"name": st.text()},
            optional={"annotations": ANY | st.dictionaries(KEYS, ANY, max_size=6)},
        ),
        "target": ANY
        | st.fixed_dictionaries({"name": st.sampled_from(["n1", ""]) | ANY})
        | st.just({"kind": "Node", "name": "n1"}),
    },
)


@settings(max_examples=300, deadline=None)
@given(BINDINGS)
def test_whatever_the_binding_it_is_allowed_and_only_ours_is_touched(binding: Json) -> None:
    before = copy.deepcopy(binding)
    verdict = _stamp(binding)
    assert binding == before
    assert verdict.allowed
    assert all(len(each) <= 120 and each.isprintable() for each in verdict.warnings)
    after = _apply(binding, verdict)
    if not verdict.patch:
        return
    found, given_ = after["metadata"], before.get("metadata") or {}
    others = {k: v for k, v in (given_.get("annotations") or {}).items() if k not in STAMPS}
    node = {"tencent.com/predicate-node": before["target"]["name"]}
    assert found["annotations"] == others | STAMPS | node
    assert {**found, "annotations": 0} == {**given_, "annotations": 0}
    assert after["target"] == before["target"]
