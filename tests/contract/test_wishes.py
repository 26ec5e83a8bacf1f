from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.errors import quote
from contract.names import Names
from contract.wishes import NO_WISHES, Wishes, read_wishes

NAMES = Names()
D = NAMES.domain


def read(**given: Any) -> tuple[Wishes, list[str]]:
    annotations = {f"{D}/{key.replace('_', '-')}": value for key, value in given.items()}
    wishes, errors = read_wishes(annotations, NAMES)
    return wishes, [str(error) for error in errors]


LISTS = ("use_gpu_type", "nouse_gpu_type", "use_gpu_uuid", "nouse_gpu_uuid")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, NO_WISHES),
        ({"use_gpu_type": " A100 , H100,a100"}, Wishes(use_types=("a100", "h100"))),
        ({"gpu_policy": "spread"}, Wishes(policy="spread")),
        ({"gpu_link": "nvlink"}, Wishes(link="nvlink")),
        ({"vcuda_core_limit": "1"}, Wishes(core_limit=1)),
        ({"vcuda_core_limit": "080"}, Wishes(core_limit=80)),
        ({"gpu_processes": "48"}, Wishes(processes=48)),
        ({"vcuda_core_limit": "150"}, Wishes(core_limit=100)),
        (dict.fromkeys((*LISTS, "gpu_policy", "vcuda_core_limit", "gpu_processes"), ""), NO_WISHES),
        ({"use_gpu_type": "A100,", "nouse_gpu_uuid": " , "}, Wishes(use_types=("a100",))),
        (
            {"use_gpu_uuid": "GPU-10,GPU-B", "nouse_gpu_uuid": "GPU-1"},
            Wishes(use_uuids=("gpu-10", "gpu-b"), nouse_uuids=("gpu-1",)),
        ),
    ],
)
def test_a_valid_wish_is_read(given: dict[str, Any], expected: Wishes) -> None:
    assert read(**given) == (expected, [])


LIMIT = "must be a whole number from 1 to 100 (more counts as that)"
PROCESSES = "must be a whole number from 1 to 48"
UUID = "is not a card UUID such as GPU-5f3c1a2e"
TYPE = "cannot be part of a product name such as A100"


@pytest.mark.parametrize(
    ("key", "value", "reason", "left"),
    [
        ("use_gpu_type", 7, "7: must be text", NO_WISHES),
        (
            *("nouse_gpu_uuid", "GPU-1,a b", f'"GPU-1,a b": "a b" {UUID}'),
            Wishes(nouse_uuids=("gpu-1", "a b")),
        ),
        ("nouse_gpu_type", "T4\tx", f'"T4\\tx": "T4\\tx" {TYPE}', Wishes(nouse_types=("t4\tx",))),
        ("gpu_policy", "Spread", '"Spread": must be binpack or spread', NO_WISHES),
        ("gpu_policy", None, "null: must be binpack", NO_WISHES),
        ("gpu_link", "strict", '"strict": must be nvlink or numa', NO_WISHES),
        *(
            ("vcuda_core_limit", value, f"{quote(value)}: {LIMIT}", NO_WISHES)
            for value in ("0", "-5", "50%", "1.5", "\u0663", 50, None)
        ),
        *(
            ("gpu_processes", value, f"{quote(value)}: {PROCESSES}", NO_WISHES)
            for value in ("0", "49", "-1", "2.0", 2, None)
        ),
    ],
)
def test_an_invalid_wish_is_reported_with_field_rule_and_value(
    key: str, value: object, reason: str, left: Wishes
) -> None:
    wishes, (error,) = read(**{key: value})
    field = f"metadata.annotations[{D}/{key.replace('_', '-')}]"
    assert error.startswith(f"{field}: Invalid value: {reason}")
    assert wishes == left


@pytest.mark.parametrize(
    ("kind", "use", "nouse"),
    [
        ("uuid", "GPU-1", "GPU-1,GPU-2"),
        ("uuid", "GPU-A", "gpu-a"),
        ("type", "A100-SXM4", "a100"),
        ("type", "NVIDIA A100-SXM4", "nvidia-a100"),
    ],
)
def test_wishes_that_exclude_each_other_are_reported(kind: str, use: str, nouse: str) -> None:
    _, (error,) = read(**{f"use_gpu_{kind}": use, f"nouse_gpu_{kind}": nouse})
    assert error.endswith(
        f'{kind}]: Invalid value: "{nouse}": excludes everything that {D}/use-gpu-{kind} allows'
    )


def test_lists_are_bounded_because_entries_are_compared_in_pairs() -> None:
    """As long as an annotation may be, two lists took the webhook half a minute."""
    most = tuple(f"t{number}" for number in range(256))
    assert read(use_gpu_type=",".join(most)) == (Wishes(use_types=most), [])
    long = ",".join(f"t{number}" for number in range(20_000))
    wishes, errors = read(use_gpu_type=long, nouse_gpu_type=f"{long.replace('t', 'x')},t")
    assert [len(each) for each in (wishes.use_types, wishes.nouse_types)] == [256, 256]
    assert all(each.endswith(": must have at most 256 entries") for each in errors)
    assert len(errors) == 2


def test_all_invalid_wishes_are_reported_at_once_with_the_given_path() -> None:
    annotations = {NAMES.use_gpu_type: 7, NAMES.use_gpu_uuid: "a b", NAMES.gpu_policy: "x"}
    _, errors = read_wishes(annotations, NAMES, path="spec.template.")
    assert [error.rule for error in errors] == ["wish-not-text", "wish-not-a-uuid", "not-a-policy"]
    assert errors[0].path == f"spec.template.metadata.annotations[{NAMES.use_gpu_type}]"


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        (NO_WISHES, ""),
        (Wishes(use_types=("l40", "a100")), ""),
        (Wishes(use_types=("h100",)), "use-gpu-type"),
        (Wishes(nouse_types=("sxm4",)), "nouse-gpu-type"),
        (Wishes(use_types=("a100",), nouse_types=("80gb",)), "nouse-gpu-type"),
        (Wishes(use_types=("nvidia-a100-sxm4-80gb",)), ""),
        (Wishes(nouse_types=("nvidia-a100",)), "nouse-gpu-type"),
        (Wishes(use_types=("nvidia a100-sxm4",)), ""),
        (Wishes(use_types=("a100 sxm4",)), "use-gpu-type"),
        (Wishes(use_uuids=("gpu-1",)), ""),
        (Wishes(use_uuids=("gpu-2",)), "use-gpu-uuid"),
        (Wishes(nouse_uuids=("gpu-1",)), "nouse-gpu-uuid"),
    ],
)
def test_a_card_is_ruled_out_by_the_wish_that_is_named(wishes: Wishes, expected: str) -> None:
    assert wishes.excludes(model="NVIDIA A100-SXM4-80GB", uuid="GPU-1") == expected


_VALUES = st.sampled_from(["a100", "GPU-1,GPU-2", "spread", "50"])


@given(
    st.dictionaries(
        st.sampled_from(sorted(NAMES.wishes)), _VALUES | st.text() | st.integers() | st.none()
    )
)
@example({NAMES.use_gpu_type: "a100"})
def test_any_annotation_value_is_read_or_reported_and_never_raises(given: dict[str, Any]) -> None:
    wishes, errors = read_wishes(given, NAMES)
    assert all(error.value for error in errors)
    if not errors and any(str(each).strip(" ,") for each in given.values()):
        assert wishes != NO_WISHES
