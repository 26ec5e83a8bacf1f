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


LABELS = "must be labels of 1 to 63 letters, digits and inner hyphens, joined by dots"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "dns: Invalid value: '': must be 1 to 253 characters"),
        ("a." * 127, f"dns: Invalid value: '{'a.' * 38}a...': must be 1 to 253 characters"),
        ("a_b", f"dns: Invalid value: 'a_b': {LABELS}"),
        ("a..b", f"dns: Invalid value: 'a..b': {LABELS}"),
        ("a.", f"dns: Invalid value: 'a.': {LABELS}"),
        ("-a", f"dns: Invalid value: '-a': {LABELS}"),
        ("a-", f"dns: Invalid value: 'a-': {LABELS}"),
        ("*", f"dns: Invalid value: '*': {LABELS}"),
        ("*.svc", f"dns: Invalid value: '*.svc': {LABELS}"),
        ("a.*.svc", f"dns: Invalid value: 'a.*.svc': {LABELS}"),
        ("a b", f"dns: Invalid value: 'a b': {LABELS}"),
        ("a\n", f"dns: Invalid value: 'a\\n': {LABELS}"),
        ("x" * 64, f"dns: Invalid value: '{'x' * 64}': {LABELS}"),
        ("hütte", "dns: Invalid value: 'hütte': must be ASCII: write the xn-- form of the name"),
        (
            "10.0.0.1",
            "dns: Invalid value: '10.0.0.1': is an address: give it as an IP address instead",
        ),
    ],
)
def test_a_bad_dns_name_is_refused_with_field_value_and_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_dns_name(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "2001:db8::5"])
def test_a_good_address_is_read(text: str) -> None:
    assert str(parse_ip(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "ip: Invalid value: '': must be an IPv4 or IPv6 address"),
        ("256.0.0.1", "ip: Invalid value: '256.0.0.1': must be an IPv4 or IPv6 address"),
        ("localhost", "ip: Invalid value: 'localhost': must be an IPv4 or IPv6 address"),
        ("10.0.0.0/8", "ip: Invalid value: '10.0.0.0/8': must be an IPv4 or IPv6 address"),
        (
            "fe80::1%eth0",
            (
                "ip: Invalid value: 'fe80::1%eth0': must not name an interface, "
                "a certificate cannot hold it"
            ),
        ),
    ],
)
def test_a_bad_address_is_refused_with_field_value_and_rule(text: str, message: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_ip(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("days", [0, -1, 3651, 10**12])
def test_days_out_of_range_are_refused(days: int) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_subject(["localhost"], [], days)
    assert str(caught.value) == f"days: Invalid value: {days}: must be 1 to 3650"


def test_a_certificate_for_nobody_is_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        parse_subject([], [], 1)
    assert str(caught.value) == "dns: Invalid value: '': give at least one DNS name or IP address"


def test_doubles_are_dropped_and_the_order_is_kept() -> None:
    subject = parse_subject(["b", "a", "B"], ["::1", "127.0.0.1", "0:0:0:0:0:0:0:1"], 1)
    assert subject.dns == ("b", "a")
    assert [str(each) for each in subject.ips] == ["::1", "127.0.0.1"]


@given(st.text())
def test_whatever_is_given_only_our_own_error_comes_out(text: str) -> None:
    for parse in (parse_dns_name, parse_ip):
        with suppress(InvalidField):
            parse(text)
