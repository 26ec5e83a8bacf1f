"""The settings of the claims program: each field with its flag."""

from dataclasses import dataclass
from pathlib import Path

import click

from common.commandline import Seconds, WholeNumber, setting
from common.listener import EVERY_ADDRESS
from contract.names import DEFAULT_DOMAIN, Names

_ALL = "GPU_TURNSTILE"
"""Prefix of the environment variables that several programs read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one replica."""

    kubeconfig: Path | None = setting(
        default=None,
        prefix=_ALL,
        type=click.Path(path_type=Path),
        help="A kubeconfig file.  [default: the pod's service account]",
    )
    names: Names = setting(
        "domain",
        default=DEFAULT_DOMAIN,
        parse=Names,
        prefix=_ALL,
        help="Domain of resources and annotations; must be that of agents and webhook.",
    )
    most_templates: int = setting(
        default=500,
        type=WholeNumber("number of templates, such as 500", 1, 100_000),
        help="Most templates in a namespace; pods of further shapes wait.",
    )
    unused: float = setting(
        default=3600.0,
        type=Seconds("3600", 60),
        help="Seconds after which a template that no pod names is deleted.",
    )
    http_host: str = setting(
        default=EVERY_ADDRESS,
        help="Address of the pages below; :: is every address, IPv4 and IPv6.",
    )
    http_port: int = setting(
        default=9442,
        type=WholeNumber("port, such as 9442", 0, 65535),
        help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
    )
