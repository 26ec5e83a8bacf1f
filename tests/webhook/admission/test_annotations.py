from typing import Any

import pytest

from contract.names import Names
from contract.stamps import OrderStamp
from webhook.admission.annotations import (
    about_dropped,
    about_supplied,
    annotations_of,
    changes_at_bind,
    changes_at_create,
    changes_without_gpus,
)

NAMES = Names()
PLACE = OrderStamp(1_700_000_000_000_000_000, "w1", 7)


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        ({}, {}),
        ({"metadata": None}, {}),
        ({"metadata": []}, {}),
        ({"metadata": {}}, {}),
        ({"metadata": {"annotations": None}}, {}),
        ({"metadata": {"annotations": "x"}}, {}),
        ({"metadata": {"annotations": {"a": "1"}}}, {"a": "1"}),
    ],
)
def test_annotations_are_found_or_there_are_none(
    pod: dict[str, Any], found: dict[str, str]
) -> None:
    assert annotations_of(pod) == found


def test_a_new_pod_gets_three_stamps_and_loses_what_is_written_later() -> None:
    given = dict.fromkeys(("tencent.com/bind-order", "tencent.com/predicate-gpu-idx-0", "a"), "x")
    assert changes_at_create(given, NAMES, PLACE) == {
        "tencent.com/predicate-time": "1700000000000000000",
        "tencent.com/admission-order": "01700000000000000000-w1-00000007",
        "tencent.com/gpu-assigned": "false",
        "tencent.com/bind-order": None,
        "tencent.com/predicate-gpu-idx-0": None,
    }


def test_a_bound_pod_gets_line_time_and_node() -> None:
    assert changes_at_bind(NAMES, PLACE, "n1") == {
        "tencent.com/predicate-time": "1700000000000000000",
        "tencent.com/bind-order": "01700000000000000000-w1-00000007",
        "tencent.com/predicate-node": "n1",
    }


def test_supplied_annotations_are_told_in_order_and_others_are_not_ours() -> None:
    given = dict.fromkeys(
        ("tencent.com/predicate-time", "tencent.com/gpu-allocation", "tencent.com/x", "a"), "1"
    )
    dropped = "metadata.annotations[tencent.com/gpu-allocation]: dropped, gpu-turnstile writes it"
    assert list(about_supplied(given, NAMES)) == [
        dropped,
        "metadata.annotations[tencent.com/predicate-time]: overwritten, gpu-turnstile writes it",
    ]
    assert list(about_supplied(given, NAMES, only_dropped=True)) == [dropped]
    assert list(about_supplied(given, NAMES, path="spec.template.", only_dropped=True)) == [
        f"spec.template.{dropped}"
    ]


def test_a_pod_without_gpus_loses_what_it_never_gets_and_with_it_what_all_get() -> None:
    by_binding = dict.fromkeys(("tencent.com/bind-order", "tencent.com/predicate-node"), "x")
    assert changes_without_gpus(by_binding | {"a": "x"}, NAMES) == {}
    given = by_binding | {"tencent.com/predicate-gpu-idx-0": "0", "a": "x"}
    changes = changes_without_gpus(given, NAMES)
    assert changes == dict.fromkeys(given.keys() - {"a"})
    assert list(about_dropped(changes | {NAMES.gpu_assigned: None}, NAMES, stamped=True)) == [
        f"metadata.annotations[tencent.com/{name}]: dropped, the pod asks for no GPU"
        for name in ("bind-order", "predicate-gpu-idx-0", "predicate-node")
    ]
