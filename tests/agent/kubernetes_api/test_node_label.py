import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kubernetes_api.node_label import model_label

_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
"""What an API server takes as a label's value, up to 63 characters."""


@pytest.mark.parametrize(
    ("models", "value"),
    [
        (["NVIDIA A100-SXM4-80GB"] * 8, "NVIDIA-A100-SXM4-80GB"),
        (["Tesla T4", ""], "Tesla-T4"),
        (["NVIDIA A30", "NVIDIA A100 80GB PCIe"], "mixed"),
        (["(R) GPU "], "R-GPU"),
        (["x" * 62 + ".y"], "x" * 62),
        (["\n", "é"], None),
        ([], None),
    ],
)
def test_the_label_is_the_model_as_far_as_labels_allow(
    models: list[str], value: str | None
) -> None:
    assert model_label(models) == value


@given(st.lists(st.text(), max_size=3))
def test_whatever_the_models_the_api_server_takes_the_label(models: list[str]) -> None:
    value = model_label(models)
    assert value is None or (value and len(value) <= 63 and _VALUE.fullmatch(value))
