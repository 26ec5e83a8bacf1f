"""Examples for properties: their number, and any JSON."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st


def share(percent: int) -> int:
    """Return *percent* of the examples that are usual: 60, and fewer in ``make test-fast``."""
    return max(1, settings().max_examples * percent // 100)


def any_json(*keys: str) -> st.SearchStrategy[Any]:
    """Draw any JSON; its mappings have some of these keys, or any where none are named."""
    names = st.sampled_from(keys) if keys else st.text(max_size=4)
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )
