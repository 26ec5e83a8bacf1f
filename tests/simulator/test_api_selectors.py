import pytest

from simulator.api.selectors import (
    InvalidSelector,
    by_fields,
    by_labels,
    labels_match,
    parse_equality,
    parse_label_selector,
)

POD = {
    "metadata": {"name": "p", "labels": {"app": "demo"}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("spec.nodeName==n1", True),
        ("spec.nodeName=n2", False),
        ("spec.nodeName!=n2", True),
        ("metadata.name=p,status.phase!=Running", False),
        ("status.reason=", True),  # an absent field is the empty string
    ],
)
def test_a_field_selector_compares_fields(selector: str, selected: bool) -> None:
    assert by_fields(selector)(POD) is selected


def test_an_absent_label_differs_from_every_value() -> None:
    selected = {text: by_labels(text)(POD) for text in ("app = demo", "tier!=web", "tier=")}
    assert selected == {"app = demo": True, "tier!=web": True, "tier=": False}


@pytest.mark.parametrize(
    ("selector", "term"), [("app", "app"), ("=x", "=x"), ("a=b,c", "c"), ("a=b=c", "a=b=c")]
)
def test_a_term_that_does_not_parse_is_named(selector: str, term: str) -> None:
    with pytest.raises(InvalidSelector) as raised:
        parse_equality(selector)
    assert str(raised.value) == f"unable to parse requirement: {term}: want key=value"


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"app": "demo"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["demo"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["demo"]}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["demo"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_a_label_selector_object_matches(selector: dict[str, object], matches: bool) -> None:
    assert labels_match(parse_label_selector(selector), {"app": "demo"}) is matches


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(InvalidSelector, match='"Like" is not a valid label selector operator'):
        parse_label_selector({"matchExpressions": [{"key": "a", "operator": "Like"}]})
