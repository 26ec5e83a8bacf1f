from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certs.errors import InvalidField
from certs.names import parse_dns_name, parse_ip, parse_subject


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("localhost", "localhost"),
        ("Webhook.Example.SVC", "webhook.example.svc"),
        ("a-b.c9", "a-b.c9"),
        ("*.example.svc", "*.example.svc"),
        ("x" * 63 + ".svc", "x" * 63 + ".svc"),
    ],
)
def test_a_good_dns_name_is_read(text: str, name: str) -> None:
    assert parse_dns_name(text) == name


RULE = (
    "must be at most 253 characters: labels of 1 to 63 letters, digits and inner hyphens, "
    "joined by dots"
)


IP = "must be an IPv4 or IPv6 address"


@pytest.mark.parametrize(
    ("dns", "ip", "days", "message"),
    [
        *(
            (text, "::1", 1, f"dns: Invalid value: {text!r}: {RULE}")
            for text in ("", "a_b", "a..b", "a.", "-a", "*", "*.svc", "a.*.svc", "a\n", "x" * 64)
        ),
        ("hütte", "::1", 1, f"dns: Invalid value: 'hütte': {RULE}"),
        ("a." * 126 + "ab", "::1", 1, f"dns: Invalid value: '{'a.' * 38}a...': {RULE}"),
        (
            *("10.0.0.1", "::1", 1),
            "dns: Invalid value: '10.0.0.1': is an address: give it as an IP address instead",
        ),
        *(
            ("a", text, 1, f"ip: Invalid value: '{text}': {IP}")
            for text in ("", "256.0.0.1", "localhost", "10.0.0.0/8")
        ),
        ("a", "fe80::1%eth0", 1, "ip: Invalid value: 'fe80::1%eth0': must not name an interface"),
        ("a", "::1", 0, "days: Invalid value: 0: must be 1 to 3650"),
        ("a", "::1", 3651, "days: Invalid value: 3651: must be 1 to 3650"),
        (None, None, 1, "dns: Invalid value: '': give at least one DNS name or IP address"),
    ],
)
def test_a_bad_subject_is_refused_with_field_value_and_rule(
    dns: str | None, ip: str | None, days: int, message: str
) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_subject([dns] if dns is not None else [], [ip] if ip is not None else [], days)
    assert str(caught.value) == message


def test_duplicates_are_dropped_and_the_order_is_kept() -> None:
    subject = parse_subject(["b", "a", "B"], ["::1", "127.0.0.1", "0:0:0:0:0:0:0:1"], 1)
    assert subject.dns == ("b", "a")
    assert [str(each) for each in subject.ips] == ["::1", "127.0.0.1"]


@given(st.text())
def test_any_text_raises_no_other_error(text: str) -> None:
    for parse in (parse_dns_name, parse_ip):
        with suppress(InvalidField):
            parse(text)
