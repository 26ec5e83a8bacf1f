"""Lists are decoded without ``managedFields``, whatever else is in them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.apiserver.lists import decode_without_managed_fields
from tests.agent.builders import patient

_TEXTS = st.sampled_from(
    [
        *('"managedFields":[{', ',"managedFields":[{"', "}],", '}],"', "}]},", '}]},"spec":{'),
        *('\\",', '"metadata":{', "\\", '"', "\u00e9", "managedFields", "a"),
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers() | _TEXTS
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_FIELDS: st.SearchStrategy[Any] = st.recursive(
    st.just({}), lambda inner: st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=6
)
_MANAGED = st.fixed_dictionaries({"manager": _TEXTS, "time": _TEXTS, "fieldsV1": _FIELDS})


@st.composite
def _objects(draw: st.DrawFn) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": draw(_TEXTS), "annotations": draw(_JSON)}
    if draw(st.booleans()):
        metadata["managedFields"] = draw(st.lists(_MANAGED, min_size=1, max_size=2))
    if draw(st.booleans()):  # not as an API server sorts them
        metadata["uid"] = draw(_TEXTS)
    rest = {"spec": draw(_JSON)} if draw(st.integers(0, 4)) else {}
    return {"metadata": metadata, **rest, "status": draw(_JSON)}


def _bare(value: Any) -> Any:
    """The list without what may be left out, of nested objects too."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _bare(each)
        for key, each in value.items()
        if key != "managedFields" or not isinstance(each, list)
    }


def _encoded(items: list[Any], **how: Any) -> bytes:
    found = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
    return json.dumps(found, separators=(",", ":"), **how).encode()


@patient
@given(st.lists(_objects(), max_size=3), st.booleans(), st.booleans())
def test_nothing_but_managed_fields_is_left_out(
    items: list[Any], ascii_only: bool, sort: bool
) -> None:
    content = _encoded(items, ensure_ascii=ascii_only, sort_keys=sort)
    assert _bare(decode_without_managed_fields(content)) == _bare(json.loads(content))


def test_managed_fields_are_left_out_where_they_stand_as_an_api_server_writes_them() -> None:
    managed = [{"manager": "kubelet", "fieldsV1": {"f:spec": {'k:{"a":"b"}': {".": {}}}}}]
    item = {"metadata": {"name": "a", "managedFields": managed}, "spec": {"nodeName": "n1"}}
    assert (
        decode_without_managed_fields(_encoded([item, item]))["items"]
        == [{"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}}] * 2
    )


@pytest.mark.parametrize("content", [b"", b'{"items":[', b'{"a":1,"managedFields":[{'])
def test_invalid_json_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="Expecting"):
        decode_without_managed_fields(content)
