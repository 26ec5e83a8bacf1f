"""``kubectl gpu``: the command line."""

import functools
import gc
import logging
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from common.apiserver.client import object_path
from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.cluster.agents import AGENT_LABEL, AGENT_NAMESPACE, read_uses
from view.cluster.collections import NODES
from view.cluster.examination import examine
from view.cluster.live import LiveCluster
from view.model.doctor.facts import Level
from view.model.reports import ClusterReport, PodReport, Stage
from view.model.usage import ContainerUse, NodeUse
from view.terminal.completion import complete_namespace, complete_node, complete_pod
from view.terminal.cordoning import change_cordon
from view.terminal.doctor import judge, show_findings
from view.terminal.documents import read_manifests
from view.terminal.faults import CommandError, in_words, not_found
from view.terminal.fitting import show_fits
from view.terminal.layout import Page
from view.terminal.nodes import UNSETTLED, show_nodes
from view.terminal.pods import show_pods
from view.terminal.session import Options, Session
from view.terminal.story import show_story
from view.terminal.top import show_use

_MOST_ASKED = 20
"""Agents that ``pods`` asks for what they measure; ``top`` asks all."""

_WHERE = (
    "Pods of this namespace are looked at where you may not read those of all."
    "  [default: the context's]"
)
_POD_PREFIXES = ("pods/", "pod/", "po/")
_PROGRAM = "kubectl gpu"


_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def options(
    namespace: str, *, watch: bool = False, formats: Sequence[str] = ("wide", "json", "yaml")
) -> _Decorator:
    """Add what every command can be told; a command is handed a session made of it.

    Args:
        namespace: what the option of this name means for the command.
        watch: whether the command can go on.
        formats: of its output.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        @click.pass_context
        def run(context: click.Context, /, **given: Any) -> None:
            own = Options(**{name: given.pop(name, None) for name in Options.__slots__})
            outer = context.parent.obj if context.parent is not None else None
            context.obj = own.over(outer) if outer is not None else own
            if context.invoked_subcommand is None:
                command(Session(context.obj), **given)

        added = [
            click.option(
                "--kubeconfig",
                metavar="FILE",
                help="Kubeconfig file to use.  [default: $KUBECONFIG, then ~/.kube/config]",
            ),
            click.option(
                "--context",
                metavar="NAME",
                help="Context of the kubeconfig to use.  [default: its current one]",
            ),
            click.option(
                "-n",
                "--namespace",
                metavar="NAME",
                help=namespace,
                shell_complete=complete_namespace,
            ),
            click.option(
                "-o",
                "--output",
                type=click.Choice(formats),
                help="wide: more columns; json, yaml: all that is known.  [default: a table]",
            ),
            click.option(
                "--color/--no-color",
                default=None,
                help="Whether to use colors.  [default: in a terminal, unless NO_COLOR is set]",
            ),
            click.option(
                "--domain",
                metavar="NAME",
                envvar="GPU_TURNSTILE_DOMAIN",
                help="Domain of the resources that pods ask for, if your admin has set another. "
                " [default: tencent.com]",
            ),
            click.option(
                "--policy",
                type=click.Choice(["binpack", "spread"]),
                help="How the cluster chooses a card for a container that asks for less than one: "
                "the fullest that has room, or the emptiest.  [default: binpack]",
            ),
        ]
        if watch:
            added.append(
                click.option(
                    "-w",
                    "--watch",
                    is_flag=True,
                    default=None,
                    help="Go on, and show changes as they come; Ctrl-C ends it.",
                )
            )
        for option in reversed(added):
            run = option(run)
        return run

    return decorate


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package_name="gpu-turnstile", prog_name=_PROGRAM)
@options("For commands that look for pods in one namespace.  [default: the context's]", watch=True)
def cli(session: Session) -> None:
    """Show GPUs: which are free, who holds what, and why a pod waits.

    Without a command: all nodes and their cards, and below them all pods that wait or were
    refused, with the reason. Nothing is ever changed but by cordon and uncordon.

    \b
    A pod does not start?
      kubectl gpu                            finds the pods that wait, of all namespaces
      kubectl gpu explain POD -n NAMESPACE   why one of them waits, and what would help

    Units: 100 cores are one card, and a container that asks for less gets a share of a card. The
    memory of cards is counted in blocks, of 256 MiB unless your admin has set another size.
    """  # noqa: D301 -- the mark by which click leaves lines as they are
    _nodes(session, ())


@cli.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@options(_WHERE, watch=True)
def nodes(session: Session, names: tuple[str, ...]) -> None:
    """Show nodes and their cards.

    Without a name: all nodes that have cards. FITS says what one more pod could get: the largest
    share of one card, or how many cards that nobody uses.
    """
    _nodes(session, names)


def _nodes(session: Session, names: tuple[str, ...]) -> None:
    cluster = session.load()
    known = {each.name for each in cluster.report(()).nodes} if names else set()
    for name in names:
        if name not in known:
            raise (
                not_found("nodes", name)
                if not _exists("nodes", "", name, session)
                else (CommandError(f'error: node "{name}" has no GPUs'))
            )

    machine = session.options.output in ("json", "yaml")

    def picture() -> tuple[Page, Callable[[], Any]]:
        report = cluster.report(Stage if machine else UNSETTLED)
        page = show_nodes(report, datetime.now(UTC), names=names, wide=session.wide)
        return page, lambda: _only(report, names)

    session.show_all(cluster, picture)


def _only(report: ClusterReport, names: tuple[str, ...]) -> Any:
    if not names:
        return report
    return {
        "nodes": [each for each in report.nodes if each.name in names],
        "gaps": report.gaps,
    }


@cli.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of all namespaces.")
@click.option(
    "--use/--no-use",
    default=None,
    help="Whether to ask the GPU nodes what containers use, where that is measured. "
    f" [default: of up to {_MOST_ASKED} nodes]",
)
@options("Pods of this namespace.  [default: the context's]", watch=True)
def pods(session: Session, *, all_namespaces: bool, use: bool | None) -> None:
    """Show pods that ask for GPUs, and what they got.

    One line a container. Waiting pods have no card, and the last column says why.
    """
    cluster = session.load()
    with in_words():
        only = None if all_namespaces else session.namespace

    def picture() -> tuple[Page, Callable[[], Any]]:
        report = cluster.report()
        shown = [each for each in report.pods if only in (None, each.namespace)]
        measured = _measured(session, shown, use=use)
        uses = {(each.namespace, each.pod, each.container): each for each in measured or ()}
        page = show_pods(
            shown,
            datetime.now(UTC),
            namespace=only,
            wide=session.wide,
            uses=uses,
        )
        return page, lambda: {"pods": shown, "uses": measured, "gaps": report.gaps}

    session.show_all(cluster, picture)


def _measured(
    session: Session, shown: Sequence[PodReport], *, use: bool | None
) -> list[ContainerUse] | None:
    """Return what agents measure of pods; ``None`` where that is not to be had."""
    running = {each.node for each in shown if each.node and each.phase == "Running"}
    if use is False or not running or (use is None and len(running) > _MOST_ASKED):
        return None
    wanted = {(each.namespace, each.name) for each in shown}
    try:
        found = read_uses(session.connection.client, nodes=sorted(running))
    except (Rejected, Gone, Unavailable) as error:
        if use:
            with in_words():
                raise error
        return None
    return [
        each for node in found for each in node.containers if (each.namespace, each.pod) in wanted
    ]


@cli.command()
@click.argument("pod", shell_complete=complete_pod)
@options("Namespace of the pod.  [default: the context's]", watch=True)
def explain(session: Session, pod: str) -> None:
    """Explain why a pod waits, or where it runs.

    For a pod that waits or was refused: why, what every card lacks, and the smallest change that
    would let it run. For one that runs: its cards, and who shares them. For both: what has happened
    to it since its creation.
    """
    for prefix in _POD_PREFIXES:
        pod = pod.removeprefix(prefix)
    cluster = session.load()
    namespace = session.namespace
    with in_words():
        cluster.load_events_of(namespace, pod)
    if cluster.explain(namespace, pod) is None:
        if not _exists("pods", namespace, pod, session):
            elsewhere = [each for each in cluster.report().pods if each.name == pod]
            where = elsewhere[0].namespace if elsewhere else ""
            raise not_found("pods", pod, f"there is one in namespace {where}" if where else "")
        core = session.names.core
        raise CommandError(
            f'error: pod "{pod}" asks for no GPU: no container has {core} in its limits'
        )

    def picture() -> tuple[Page, Callable[[], Any]]:
        story = cluster.explain(namespace, pod)
        if story is None:
            raise not_found("pods", pod)
        return show_story(story, datetime.now(UTC), wide=session.wide), lambda: story

    session.show_all(cluster, picture)


@cli.command()
@click.option(
    "-f",
    "--filename",
    type=click.File("r", encoding="utf-8"),
    multiple=True,
    required=True,
    help="A manifest of a pod or a workload, such as a Deployment; - for standard input.",
)
@options(_WHERE)
def fit(session: Session, filename: Sequence[Any]) -> None:
    """Show whether and where a pod would fit, and change nothing.

    The exit code is 0 where all manifests fit, 1 where one does not, 2 or more for an error.
    """
    try:
        with in_words(2):
            manifests = [each for file in filename for each in read_manifests(file.read())]
        if not manifests:
            raise CommandError("error: no objects passed to fit", 2)
        cluster = session.load()
        with in_words(2):
            reports = [cluster.fit(each) for each in manifests]
    except UnicodeDecodeError as error:
        raise CommandError(f"error: {error}", 2) from error
    except CommandError as error:
        error.code = 2
        raise
    session.show(show_fits(reports, wide=session.wide), lambda: {"fits": reports})
    sys.exit(0 if all(each.fits for each in reports) else 1)


@cli.command()
@click.argument("node", shell_complete=complete_node)
@click.argument("cards", nargs=-1, required=True, metavar="CARD...")
@options(_WHERE)
def cordon(session: Session, node: str, cards: tuple[str, ...]) -> None:
    """Keep new containers from cards of a node; running ones stay.

    CARD is an index or a UUID. You need the right to get and patch nodes.
    """
    _cordon(session, node, cards, cordon=True)


@cli.command()
@click.argument("node", shell_complete=complete_node)
@click.argument("cards", nargs=-1, required=True, metavar="CARD...")
@options(_WHERE)
def uncordon(session: Session, node: str, cards: tuple[str, ...]) -> None:
    """Let new containers have cards of a node again.

    CARD is an index or a UUID. You need the right to get and patch nodes.
    """
    _cordon(session, node, cards, cordon=False)


def _cordon(session: Session, node: str, cards: Sequence[str], *, cordon: bool) -> None:
    client = session.connection.client
    with in_words():
        for text in change_cordon(client, session.names, node, cards, cordon=cordon):
            click.echo(text)


@cli.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@click.option(
    "--agent-namespace",
    metavar="NAME",
    default=AGENT_NAMESPACE,
    show_default=True,
    help="Where gpu-turnstile's agents run, the pods on GPU nodes that measure.",
)
@click.option(
    "--interval",
    type=click.FloatRange(1),
    default=5.0,
    show_default=True,
    help="Seconds between two readings, with --watch.",
)
@options("Containers of this namespace alone.  [default: of all]", watch=True)
def top(session: Session, names: tuple[str, ...], agent_namespace: str, interval: float) -> None:
    """Show what cards and containers use of what they hold.

    Measured on the nodes by gpu-turnstile's agents, which are asked through the API server. Where
    they do not measure, that is said, and what is held is shown.
    """
    cluster = session.load((NODES,))
    on = f" on {' or '.join(names)}" if names else ""
    sought = f"no pod with label {AGENT_LABEL} runs{on} in namespace {agent_namespace}"
    sought += " (--agent-namespace names another)"
    if not session.options.watch:
        found = _uses(session, agent_namespace, names)
        session.show(_use_page(session, cluster, found, sought), lambda: {"nodes": found})
        return
    session.go_on()
    with session.screen.redrawing() as redraw:
        while True:
            found = _uses(session, agent_namespace, names)
            redraw(_use_page(session, cluster, found, sought))
            time.sleep(interval)


def _uses(session: Session, namespace: str, names: tuple[str, ...]) -> tuple[NodeUse, ...]:
    with in_words():
        return read_uses(session.connection.client, namespace, names or None)


def _use_page(
    session: Session, cluster: LiveCluster, found: Sequence[NodeUse], sought: str
) -> Page:
    cards = {
        card.uuid: (node.name, card.index, card.model)
        for node in cluster.report(()).nodes
        for card in node.cards
    }
    return show_use(found, cards, namespace=session.options.namespace, sought=sought)


@cli.command()
@click.option("--node", metavar="NAME", help="Only this node.  [default: all]")
@options(
    "Where a GPU pod is tried, as a dry run: nothing is created.  [default: the context's]",
    formats=("json", "yaml"),
)
def doctor(session: Session, node: str | None) -> None:
    """Check an installation: webhook, certificates, policies, agents, cards, scheduler.

    One line a check: ok, warning, error, or unknown where you may not read what it needs; below
    it what to run next. The exit code is 1 where there is an error.
    """
    with in_words():
        facts = examine(session.connection.client, session.names, session.namespace, node)
    found = judge(facts, node)
    session.show(show_findings(found), lambda: {"findings": found})
    sys.exit(1 if any(each.level is Level.ERROR for each in found) else 0)


def _exists(resource: str, namespace: str, name: str, session: Session) -> bool:
    """Return whether there is such an object; ``True`` where that may not be asked."""
    path = object_path(resource, namespace, name) if namespace else f"/api/v1/{resource}/{name}"
    with in_words():
        try:
            session.connection.client.call("GET", path, timeout=5.0)
        except Rejected as error:
            return error.status != 404
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process."""
    quiet = logging.getLogger("common")  # its words are for servers
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    # What the client says of a kubeconfig's programs, and of a server that is not to be checked.
    logging.basicConfig(format="error: %(message)s", level=logging.ERROR)
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    try:
        cli.main(arguments, prog_name=_PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.code if isinstance(error, CommandError) else error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        with suppress(OSError):
            sys.stdout.flush()
        sys.exit(130)
    finally:
        gc.enable()  # for who calls this as a function
