"""The settings of the controller: each field with its flag."""

import socket
from dataclasses import dataclass
from pathlib import Path

import click

from common.commandline import Seconds, WholeNumber, choice, setting
from common.listener import EVERY_ADDRESS
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy

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
    policy: Policy = choice(
        Policy.BINPACK,
        prefix=_ALL,
        help="Which card of a node a share prefers; must be the agents' too.",
    )
    node_policy: Policy = choice(Policy.BINPACK, help="Which node a pod prefers.")
    keep: float = setting(
        default=300.0,
        type=Seconds("300", 10, 86_400),
        help="Seconds for which cards are kept for the pods of a workload.",
    )
    retry: float = setting(
        default=5.0,
        type=Seconds("5", 1, 3600),
        help="Seconds until a workload without cards is tried again anyway; doubled each time.",
    )
    longest_retry: float = setting(
        default=120.0, type=Seconds("120", 1, 86_400), help="The most of these seconds."
    )
    lease: str = setting(
        default="gpu-turnstile-gates", help="Lease that elects the replica that answers."
    )
    namespace: str = setting(default="gpu-turnstile", help="Namespace of the lease.")
    identity: str = setting(
        default=socket.gethostname,
        show_default="host name",
        help="Name of this replica in the lease.",
    )
    http_host: str = setting(
        default=EVERY_ADDRESS,
        help="Address of the pages below; :: is every address, IPv4 and IPv6.",
    )
    http_port: int = setting(
        default=9443,
        type=WholeNumber("port, such as 9443", 0, 65535),
        help="Port of /healthz, /readyz and /metrics; 0 takes a free one.",
    )
