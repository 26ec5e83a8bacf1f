"""The subject of a serving certificate: DNS names, IP addresses, days."""

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from certs.errors import InvalidField

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z", re.ASCII)
_LONGEST_NAME = 253
_RULE = (
    "must be at most 253 characters: labels of 1 to 63 letters, digits and inner hyphens, "
    "joined by dots"
)
LONGEST_DAYS = 3650
"""Ten years."""


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """The names in a serving certificate, and its validity.

    Attributes:
        dns: host names, lower case, without duplicates, in the given order.
        ips: addresses, without duplicates, in the given order.
        days: days for which it is valid from now.
    """

    dns: tuple[str, ...]
    ips: tuple[Address, ...]
    days: int


def parse_subject(dns: Iterable[str], ips: Iterable[str], days: int) -> CertificateSubject:
    """Read the arguments of a command line.

    Raises:
        InvalidField: an argument breaks a rule.
    """
    subject = CertificateSubject(
        tuple(dict.fromkeys(parse_dns_name(each) for each in dns)),
        tuple(dict.fromkeys(parse_ip(each) for each in ips)),
        days,
    )
    if not subject.dns and not subject.ips:
        raise InvalidField("dns", "", "give at least one DNS name or IP address")
    if not 1 <= days <= LONGEST_DAYS:
        raise InvalidField("days", days, f"must be 1 to {LONGEST_DAYS}")
    return subject


def parse_dns_name(text: str) -> str:
    """Read a host name (RFC 1123), which may have a wildcard as its leftmost label.

    Raises:
        InvalidField: the name could never match a host.
    """
    name = text.lower()
    labels = name.split(".")
    if labels[0] == "*" and len(labels) > 2:
        labels = labels[1:]
    if len(name) > _LONGEST_NAME or not all(map(_LABEL.match, labels)):
        raise InvalidField("dns", text, _RULE)
    with suppress(ValueError):
        ipaddress.ip_address(name)
        raise InvalidField("dns", text, "is an address: give it as an IP address instead")
    return name


def parse_ip(text: str) -> Address:
    """Read an IPv4 or IPv6 address.

    Raises:
        InvalidField: it is not an address, or has an interface, which a certificate cannot have.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidField("ip", text, "must be an IPv4 or IPv6 address") from error
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise InvalidField("ip", text, "must not name an interface")
    return address
