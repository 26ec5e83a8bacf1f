"""Settings that several programs have: fields for :func:`common.commandline.options_of`."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from common.commandline import WholeNumber, setting
from common.listener import EVERY_ADDRESS

SHARED = "GPU_TURNSTILE"
"""Prefix of the environment variables that several programs read."""

_Value = TypeVar("_Value")


def kubeconfig() -> Path | None:
    """Declare the field of a kubeconfig file."""
    text = "A kubeconfig file.  [default: the pod's service account]"
    field: Path | None = setting(
        default=None, prefix=SHARED, type=click.Path(path_type=Path), help=text
    )
    return field


def domain(default: str, parse: Callable[[Any], _Value]) -> _Value:
    """Declare the field of ``--domain``."""
    text = "Domain of resources and annotations; must be that of agents and webhook."
    field: _Value = setting("domain", default=default, parse=parse, prefix=SHARED, help=text)
    return field


def identity() -> str:
    """Declare the field of a replica's name in its lease."""
    text = "Name of this replica in the lease."
    field: str = setting(default=socket.gethostname, show_default="host name", help=text)
    return field


def http_host() -> str:
    """Declare the field of the address of probes and metrics."""
    text = "Address of the pages below; :: is every address, IPv4 and IPv6."
    field: str = setting(default=EVERY_ADDRESS, help=text)
    return field


def http_port(default: int) -> int:
    """Declare the field of their port."""
    text = "Port of /healthz, /readyz and /metrics; 0 takes a free one."
    kind = WholeNumber(f"port, such as {default}", 0, 65535)
    field: int = setting(default=default, type=kind, help=text)
    return field
