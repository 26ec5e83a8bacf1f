"""The cost of measuring use in a tiny configuration: that it is measured, not what."""

import shutil

import pytest

from bench import use
from bench.load import Load

pytestmark = pytest.mark.slow


def test_a_small_node_is_measured_with_and_without() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    result = use.run(load=Load(2, 4, 0), seconds=0.2, period="1s")
    (table,) = result.tables
    assert all(float(value) >= 0 for _, value in table.rows)
