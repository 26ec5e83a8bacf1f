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


@pytest.mark.parametrize(
    "text",
    ["", "a_b", "a..b", "a.", "-a", "a-", "*", "*.svc", "a.*.svc", "a\n", "x" * 64, "hütte"],
)
def test_a_bad_dns_name_is_refused_with_field_value_and_rule(text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_dns_name(text)
    assert str(caught.value) == f"dns: Invalid value: {text!r}: {RULE}"


def test_a_long_name_is_cut_in_the_message_and_an_address_is_no_name() -> None:
    with pytest.raises(InvalidField) as caught:
        parse_dns_name("a." * 126 + "ab")
    assert str(caught.value) == f"dns: Invalid value: '{'a.' * 38}a...': {RULE}"
    with pytest.raises(InvalidField, match="is an address: give it as an IP"):
        parse_dns_name("10.0.0.1")


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
            "ip: Invalid value: 'fe80::1%eth0': must not name an interface",
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


def test_a_certificate_without_hosts_is_refused() -> None:
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
