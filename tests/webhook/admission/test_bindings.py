import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.names import Names
from tests.examples import share
from tests.webhook.admission.building import (
    ANY,
    ORDER,
    TIME,
    Json,
    applied,
    no_stamp,
    review_of,
    stamp,
)
from webhook.admission.bindings import mutate_binding, stamp_binding
from webhook.admission.decision import Decision
from webhook.admission.reviews import ReviewedResource

NAMES = Names()
STAMPS = {
    "tencent.com/predicate-time": str(TIME),
    "tencent.com/bind-order": ORDER,
    "tencent.com/predicate-node": "node-1",
}


@pytest.fixture
def binding() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "train", "namespace": "team", "uid": "u-1"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("plural", "kind", "subresource"),
    [
        ("pods", "Binding", "binding"),
        ("pods", "", "binding"),
        ("bindings", "Binding", ""),
        ("", "Binding", ""),
    ],
)
def test_a_binding_gets_order_time_and_node_by_both_ways_and_is_not_changed_otherwise(
    binding: Json, plural: str, kind: str, subresource: str, *, dry_run: bool
) -> None:
    target = ReviewedResource("", "v1", plural, kind, subresource)
    for to in ("Node", "", None):
        binding["target"]["kind"] = to
        review = review_of(target, binding, dry_run=dry_run)
        verdict = mutate_binding(review, names=NAMES, stamp=stamp)
        assert (verdict.label, verdict.warnings) == ("patched", ())
        expected = copy.deepcopy(binding)
        expected["metadata"]["annotations"] = STAMPS
        assert applied(binding, verdict) == expected


@pytest.mark.parametrize(
    ("field", "value", "warning"),
    [
        ("target", None, "target.name: null is not a node name"),
        ("target", {"name": ""}, 'target.name: "" is not a node name'),
        ("target", {"name": 7}, "target.name: 7 is not a node name"),
        ("target", {"name": "n", "kind": "Pod"}, 'target.kind: "Pod" is not Node'),
        ("metadata", [], "metadata: a list is not a mapping"),
        ("metadata", {"annotations": "x"}, 'metadata.annotations: "x" is not a mapping'),
    ],
)
def test_a_binding_that_cannot_be_stamped_is_allowed(
    binding: Json, field: str, value: object, warning: str
) -> None:
    binding[field] = value
    verdict = stamp_binding(binding, names=NAMES, stamp=no_stamp)
    assert verdict == Decision(warnings=(f"{warning}: bound without stamps",))


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


@settings(max_examples=share(150))
@given(BINDINGS)
def test_any_binding_is_allowed_and_only_our_annotations_change(binding: Json) -> None:
    before = copy.deepcopy(binding)
    verdict = stamp_binding(binding, names=NAMES, stamp=stamp)
    assert binding == before
    assert verdict.allowed
    assert all(len(each) <= 120 and each.isprintable() for each in verdict.warnings)
    after = applied(binding, verdict)
    if not verdict.patch:
        return
    found, given_ = after["metadata"], before.get("metadata") or {}
    others = {k: v for k, v in (given_.get("annotations") or {}).items() if k not in STAMPS}
    node = {"tencent.com/predicate-node": before["target"]["name"]}
    assert found["annotations"] == others | STAMPS | node
    assert {**found, "annotations": 0} == {**given_, "annotations": 0}
    assert after["target"] == before["target"]
