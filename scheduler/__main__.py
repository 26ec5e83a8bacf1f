"""``python -m scheduler``: the command line."""

import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from common.commandline import flag, read_by, run, server_options
from common.logs import configure
from common.serving.errors import SettingsError
from common.serving.tls import Files
from contract.errors import InvalidName
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from scheduler.server import serve
from scheduler.settings import Settings

_FILE = click.Path(path_type=Path)
_PREFIX = "GPU_TURNSTILE_SCHEDULER"
_flag, _shared = partial(flag, _PREFIX), partial(flag, "GPU_TURNSTILE")
_POLICY = click.Choice([each.value for each in Policy])


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@server_options(
    _PREFIX,
    port=8444,
    clients="only clients with its certificate are answered",
)
@_shared(
    "kubeconfig",
    type=_FILE,
    help="A kubeconfig file.  [default: the pod's service account]",
)
@_shared(
    "domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    help="Domain of resources and annotations; agents and webhook must have the same.",
)
@_shared(
    "policy",
    type=_POLICY,
    default=Policy.BINPACK.value,
    help="Which card of a node a share prefers; the agents must have the same.",
)
@_flag(
    "node-policy",
    type=_POLICY,
    default=Policy.BINPACK.value,
    help="Which node a pod prefers.",
)
@_flag(
    "lease",
    default="gpu-turnstile-scheduler",
    help="Lease of the replica that binds; empty for a single replica without a lease.",
)
@_flag(
    "namespace",
    default="gpu-turnstile",
    help="Namespace of the lease and of the EndpointSlice.",
)
@_flag(
    "endpoint-slice",
    default="",
    help="EndpointSlice of the Service; the leader writes --address into it. Empty: none.",
)
@_flag(
    "identity",
    default=socket.gethostname,
    show_default="host name",
    help="Name of this replica in the lease.",
)
@_flag(
    "address",
    default="",
    help="IP of this replica, for --endpoint-slice.",
)
@_flag(
    "threads",
    type=click.IntRange(2, 256),
    default=32,
    help="Bindings that wait for the API server at the same time.",
)
def cli(  # noqa: PLR0913 - what is not yet as the settings have it
    *,
    cert: Path,
    key: Path,
    client_ca: Path | None,
    domain: Names,
    policy: str,
    node_policy: str,
    **others: Any,
) -> None:
    """Serve the gpu-turnstile scheduler extender over HTTPS."""
    if others["endpoint_slice"] and not others["address"]:
        raise SettingsError("--address: Required value: --endpoint-slice needs it")
    configure(quiet=("urllib3",))
    serve(
        Settings(
            files=Files(cert, key, client_ca),
            names=domain,
            policy=Policy(policy),
            node_policy=Policy(node_policy),
            **others,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="scheduler", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
