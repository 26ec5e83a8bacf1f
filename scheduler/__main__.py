"""``python -m scheduler``: the command line."""

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from common.commandline import read_by, run, server_options
from common.logs import configure
from common.serving.errors import SettingsError
from common.serving.tls import Files
from contract.errors import InvalidName
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from scheduler.server import serve
from scheduler.settings import Settings

_FILE = click.Path(path_type=Path)
_POLICY = click.Choice([each.value for each in Policy])


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@server_options(
    "GPU_TURNSTILE_SCHEDULER",
    port=8444,
    clients="only clients with its certificate are answered",
)
@click.option(
    "--kubeconfig",
    type=_FILE,
    envvar="GPU_TURNSTILE_KUBECONFIG",
    show_envvar=True,
    help="A kubeconfig file.  [default: the pod's service account]",
)
@click.option(
    "--domain",
    default=DEFAULT_DOMAIN,
    callback=read_by(Names),
    envvar="GPU_TURNSTILE_DOMAIN",
    show_envvar=True,
    help="Domain of resources and annotations; agents and webhook must have the same.",
)
@click.option(
    "--policy",
    type=_POLICY,
    default=Policy.BINPACK.value,
    envvar="GPU_TURNSTILE_POLICY",
    show_envvar=True,
    help="Which card of a node a share prefers; the agents must have the same.",
)
@click.option(
    "--node-policy",
    type=_POLICY,
    default=Policy.BINPACK.value,
    envvar="GPU_TURNSTILE_SCHEDULER_NODE_POLICY",
    show_envvar=True,
    help="Which node a pod prefers.",
)
@click.option(
    "--lease",
    default="gpu-turnstile-scheduler",
    envvar="GPU_TURNSTILE_SCHEDULER_LEASE",
    show_envvar=True,
    help="Lease of the replica that binds; empty for a single replica without a lease.",
)
@click.option(
    "--namespace",
    default="gpu-turnstile",
    envvar="GPU_TURNSTILE_SCHEDULER_NAMESPACE",
    show_envvar=True,
    help="Namespace of the lease and of the EndpointSlice.",
)
@click.option(
    "--endpoint-slice",
    default="",
    envvar="GPU_TURNSTILE_SCHEDULER_ENDPOINT_SLICE",
    show_envvar=True,
    help="EndpointSlice of the Service; the leader writes --address into it. Empty: none.",
)
@click.option(
    "--identity",
    default=socket.gethostname,
    envvar="GPU_TURNSTILE_SCHEDULER_IDENTITY",
    show_envvar=True,
    show_default="host name",
    help="Name of this replica in the lease.",
)
@click.option(
    "--address",
    default="",
    envvar="GPU_TURNSTILE_SCHEDULER_ADDRESS",
    show_envvar=True,
    help="IP of this replica, for --endpoint-slice.",
)
@click.option(
    "--threads",
    type=click.IntRange(2, 256),
    default=32,
    envvar="GPU_TURNSTILE_SCHEDULER_THREADS",
    show_envvar=True,
    help="Bindings that wait for the API server at the same time.",
)
def cli(  # noqa: PLR0913 - one argument a flag
    *,
    port: int,
    host: str,
    cert: Path,
    key: Path,
    client_ca: Path | None,
    kubeconfig: Path | None,
    domain: Names,
    policy: str,
    node_policy: str,
    lease: str,
    namespace: str,
    endpoint_slice: str,
    identity: str,
    address: str,
    threads: int,
) -> None:
    """Serve the gpu-turnstile scheduler extender over HTTPS."""
    if endpoint_slice and not address:
        raise SettingsError("--address: Required value: --endpoint-slice needs it")
    configure(quiet=("urllib3",))
    serve(
        Settings(
            host,
            port,
            Files(cert, key, client_ca),
            domain,
            kubeconfig=kubeconfig,
            policy=Policy(policy),
            node_policy=Policy(node_policy),
            namespace=namespace,
            lease=lease,
            endpoint_slice=endpoint_slice,
            identity=identity,
            address=address,
            threads=threads,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and an exit status other than 0."""
    return run(cli, arguments, program="scheduler", failures=(SettingsError, InvalidName))


if __name__ == "__main__":
    sys.exit(main())
