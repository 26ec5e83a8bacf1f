from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.issue import Issued
from certs.objects import (
    LABEL,
    LABEL_VALUE,
    SERVING_SINCE,
    Json,
    Origin,
    Purpose,
    WebhookKind,
    bundle_patch,
    changed,
    new_secret,
    parse_configuration,
    parse_secret,
    write_stamp,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_additions_of_others_to_a_secret_are_kept(issued: Issued) -> None:
    obj: Json = {
        "metadata": {"name": "s", "annotations": {"a": "b"}, "labels": {"c": "d"}},
        "type": "Opaque",
        "data": {"more": "YQ=="},
    }
    made = changed(obj, {"ca.crt": issued.authority.certificate}, since=NOW)
    assert made["type"] == "Opaque"
    assert made["metadata"]["labels"] == {"c": "d", LABEL: LABEL_VALUE}
    assert made["metadata"]["annotations"] == {"a": "b", SERVING_SINCE: "2030-01-02T03:04:05Z"}
    assert made["data"]["more"] == "YQ=="
    assert obj["data"] == {"more": "YQ=="}


@pytest.mark.parametrize(
    ("obj", "origin"),
    [
        (None, Origin.ABSENT),
        ({}, Origin.EMPTY),
        ({"metadata": {"labels": None}, "data": {"tls.crt": ""}}, Origin.EMPTY),
        ({"metadata": {"labels": {LABEL: "Helm"}}, "data": {"x": "YQ=="}}, Origin.FOREIGN),
        ({"metadata": {"labels": {LABEL: LABEL_VALUE}}}, Origin.OURS),
    ],
)
def test_the_label_shows_the_owner_of_a_secret(obj: Json | None, origin: Origin) -> None:
    assert parse_secret("s", Purpose.SERVING, obj).origin is origin


@pytest.mark.parametrize(
    ("purpose", "wrong", "problem"),
    [
        (Purpose.AUTHORITY, "serving", "ca.crt: is the certificate of no authority"),
        (Purpose.SERVING, "authority", "tls.crt: is the certificate of an authority"),
    ],
)
def test_swapped_certificates_are_no_pair(
    issued: Issued, purpose: Purpose, wrong: str, problem: str
) -> None:
    pair = getattr(issued, wrong)
    _, certificate, key = purpose.value
    swapped = changed(
        new_secret("s", purpose, namespace="n"), {certificate: pair.certificate, key: pair.key}
    )
    found = parse_secret("s", purpose, swapped)
    assert (found.pair, found.certificate, found.problem) == (None, None, problem)


@pytest.mark.parametrize(
    ("annotations", "path", "value"),
    [
        (None, "/metadata/annotations", {"gpu-turnstile/bundle-changed": "2030-01-02T03:04:05Z"}),
        ({"a": "b"}, "/metadata/annotations/gpu-turnstile~1bundle-changed", "2030-01-02T03:04:05Z"),
    ],
)
def test_a_patch_keeps_other_annotations(
    annotations: Json | None, path: str, value: object
) -> None:
    obj: Json = {
        "metadata": {"resourceVersion": "7", "annotations": annotations},
        "webhooks": [{"clientConfig": {}}],
    }
    assert bundle_patch(parse_configuration(WebhookKind.MUTATING, "c", obj), (), NOW) == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": path, "value": value},
        {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""},
    ]


@given(st.one_of(st.none(), st.text(), st.integers(), st.just("2030-01-01T00:00:00")))
def test_an_annotation_that_is_no_time_is_no_stamp(text: object) -> None:
    obj: Json = {"metadata": {"annotations": {SERVING_SINCE: text}}}
    since = parse_secret("s", Purpose.SERVING, obj).since
    assert since is None or since.tzinfo is not None


def test_a_stamp_is_never_before_what_it_dates() -> None:
    assert write_stamp(NOW) == "2030-01-02T03:04:05Z"
    assert write_stamp(NOW.replace(microsecond=1)) == "2030-01-02T03:04:06Z"
