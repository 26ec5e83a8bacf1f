"""``kubectl gpu``: the command line."""

import functools
import gc
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import click

from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.cluster.agents import AGENT_NAMESPACE, read_uses
from view.cluster.collections import ALL, NODES, PODS, Kind, events_of
from view.cluster.live import LiveCluster
from view.model.reports import Answer, ClusterReport, Gap, NodeReport, PodReport, Stage
from view.model.usage import ContainerUse, NodeUse
from view.model.words import gaps_in_words
from view.terminal.completion import (
    complete_context,
    complete_namespace,
    complete_node,
    complete_pod,
)
from view.terminal.cordoning import change_cordon
from view.terminal.documents import read_manifests
from view.terminal.faults import CommandError, in_words, not_found
from view.terminal.layout import WARN, line
from view.terminal.nodes import UNSETTLED, show_nodes
from view.terminal.pods import show_pods
from view.terminal.session import NOT_KNOWN, Options, Session, Shown
from view.terminal.story import show_fits, show_story
from view.terminal.top import show_use

_MOST_ASKED = 20
"""Agents that ``pods`` asks for what they measure; ``top`` asks all."""

_WHERE = (
    "Pods of this namespace are looked at where you may not read those of all."
    "  [default: the context's]"
)
_PROGRAM = "kubectl gpu"
_KINDS = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes"}
"""Short names of resources, as of ``kubectl``; commands have them too."""

_SHORT = re.compile(r"(-[A-Za-z])=(.*)", re.DOTALL)
_SECONDS = re.compile(r"(\d+)(s|m|h|)")

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _Seconds(click.ParamType[float]):
    """A length of time as ``kubectl`` takes it: ``30``, ``30s``, ``2m``; 0 is without end."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = _SECONDS.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no length of time such as 30s", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


class _Group(click.Group):
    """Commands with the short names of their resources."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _KINDS.get(cmd_name, cmd_name))


def _flag(*names: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(*names, is_flag=True, default=None, help=text)


def _value(*names: str, text: str, metavar: str | None = "NAME", **more: Any) -> Any:
    return click.option(*names, metavar=metavar, help=text, **more)


_FORMATS = click.Choice(["wide", "json", "yaml", "name"])
_POLICIES = click.Choice(["binpack", "spread"])
_OPTIONS = (
    _value(
        "--kubeconfig",
        metavar="FILE",
        text="Kubeconfig file to use.  [default: $KUBECONFIG, then ~/.kube/config]",
    ),
    _value(
        "--context",
        shell_complete=complete_context,
        text="Context of the kubeconfig to use.  [default: its current one]",
    ),
    _value("--as", "as_user", text="User for whom to ask, where you may act for others."),
    _value("--as-group", multiple=True, text="Group of that user; as often as needed."),
    _value(
        "--request-timeout",
        metavar="TIME",
        type=_Seconds(),
        text="For each page of a list, such as 10s.  [default: 30s]",
    ),
    _flag("-A", "--all-namespaces", text="Pods of all namespaces."),
    _value("-l", "--selector", text="Only what has such labels, such as app=train."),
    _value("--field-selector", text="Only what has such fields, such as spec.nodeName=n1."),
    _value(
        "-o",
        "--output",
        type=_FORMATS,
        metavar=None,
        text="More columns (wide), all that is known (json, yaml), or names.  [default: a table]",
    ),
    _flag("--no-headers", text="Rows alone, for scripts; what is unknown goes to standard error."),
    _value(
        "--sort-by", text="Order by a field of -o json: coresFree, .metadata.name and the like."
    ),
    click.option(
        "--color/--no-color",
        default=None,
        help="Whether to use colors.  [default: in a terminal, unless NO_COLOR is set]",
    ),
    _value(
        "--domain",
        envvar="GPU_TURNSTILE_DOMAIN",
        text="Domain of the resources that pods ask for, if your admin has set another. "
        " [default: tencent.com]",
    ),
    _value(
        "--policy",
        type=_POLICIES,
        metavar=None,
        text="How the cluster chooses a card for a container that asks for less than one: the "
        "fullest that has room, or the emptiest.  [default: binpack]",
    ),
)
_WATCH = _flag("-w", "--watch", text="Go on, and show changes as they come; Ctrl-C ends it.")


def options(namespace: str, *, watch: bool = False) -> _Decorator:
    """Add what every command can be told; a command is handed a session made of it."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        @click.pass_context
        def run(context: click.Context, /, **given: Any) -> None:
            own = Options(**{name: given.pop(name, None) for name in Options.__slots__})
            outer = context.parent.obj if context.parent is not None else None
            context.obj = own.over(outer) if outer is not None else own
            if context.invoked_subcommand is None:
                command(Session(context.obj), **given)

        where = _value("-n", "--namespace", shell_complete=complete_namespace, text=namespace)
        for option in (*((_WATCH,) if watch else ()), *reversed(_OPTIONS), where):
            run = option(run)
        return run

    return decorate


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Group, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package_name="gpu-turnstile", prog_name=_PROGRAM)
@_flag(
    "--all",
    "every",
    text="A row for each pod that waits, and not for those of one owner and cause.",
)
@options("Pods of this namespace alone.  [default: of all; for commands the context's]", watch=True)
def cli(session: Session, *, every: bool | None) -> None:
    """Show GPUs: which are free, who holds what, and why a pod waits.

    Without a command: all nodes and their cards, and below them all pods that wait, fail or were
    refused, with the reason. Nothing is ever changed but by cordon and uncordon.

    \b
    A pod does not start?
      kubectl gpu                         finds the pods that wait, of all namespaces
      kubectl gpu explain NAMESPACE/POD   why one of them waits, and what would help

    Units: 100 cores are one card, and a container that asks for less gets a share of a card. The
    memory of cards is counted in blocks, of 256 MiB unless your admin has set another size.
    """  # noqa: D301 -- the mark by which click leaves lines as they are
    _nodes(session, (), every=bool(every))


@cli.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@options(_WHERE, watch=True)
def nodes(session: Session, names: tuple[str, ...]) -> None:
    """Show nodes and their cards.

    Without a name: all nodes that have cards. FITS says what one more pod could get: the largest
    share of one card, or how many cards that nobody uses.
    """
    _nodes(session, tuple(_split(name)[1] for name in names), every=False)


def _nodes(session: Session, names: tuple[str, ...], *, every: bool) -> None:
    cluster = session.load(chosen="nodes")
    for name in names:
        _node_in(cluster, name)
    only = None if session.options.all_namespaces else session.options.namespace

    def picture() -> Shown:
        report = cluster.report(Stage if session.machine else UNSETTLED)
        report = _only(report, names, cluster.chosen, only)
        shown = replace(report, nodes=tuple(session.sorted(report.nodes)))
        page = show_nodes(shown, datetime.now(UTC), names=names, wide=session.wide, every=every)
        more = {} if names else {"pods": report.pods, "denied": report.denied}
        return Shown("GpuNodeList", shown.nodes, page, report.gaps, "node", more)

    session.show_all(cluster, picture)


def _node_in(cluster: LiveCluster, name: str) -> NodeReport:
    """Return a node that the user has named, which may be read though nodes may not be listed.

    Raises:
        CommandError: there is none, it has no GPUs, or it may not be read.
    """
    for asked in (False, True):
        if asked:
            _ask(cluster, NODES, "", name)
        for each in cluster.report(()).nodes:
            if each.name == name:
                return each
    raise CommandError(f'error: node "{name}" has no GPUs')


def _ask(cluster: LiveCluster, kind: Kind, namespace: str, name: str, hint: str = "") -> None:
    """Read one object.

    Raises:
        CommandError: there is none, or it may not be read, and which right is missing.
    """
    with in_words():
        try:
            cluster.load_object(kind, namespace, name)
        except Rejected as error:
            if error.status == 404:
                raise not_found(kind.what, name, hint) from error
            if error.status == 403:
                cure = ". ".join(gaps_in_words([Gap(kind.what, "", "", "get")]))
                text = f"Error from server (Forbidden): {error}. {cure}"
                raise CommandError(text, NOT_KNOWN) from error
            raise


def _only(
    report: ClusterReport, names: Sequence[str], chosen: Any, namespace: str | None
) -> ClusterReport:
    """Return the part of a report that the user wants."""
    return replace(
        report,
        nodes=tuple(
            each
            for each in report.nodes
            if (not names or each.name in names) and (chosen is None or ("", each.name) in chosen)
        ),
        pods=tuple(each for each in report.pods if namespace in (None, each.namespace)),
        denied=tuple(each for each in report.denied if namespace in (None, each.namespace)),
    )


def _split(name: str) -> tuple[str, str]:
    """Take ``pod/NAME`` and ``NAMESPACE/NAME`` apart; the namespace is empty where none is said."""
    first, slash, rest = name.partition("/")
    if slash and (first in _KINDS or first in _KINDS.values()):
        return _split(rest) if "/" in rest else ("", rest)
    return (first, rest) if slash else ("", name)


@cli.command()
@click.option(
    "--use/--no-use",
    default=None,
    help="Whether to ask the GPU nodes what containers use, where that is measured. "
    f" [default: of up to {_MOST_ASKED} nodes]",
)
@options("Pods of this namespace.  [default: the context's]", watch=True)
def pods(session: Session, *, use: bool | None) -> None:
    """Show pods that ask for GPUs, and what they got.

    One line a container. Waiting pods have no card, and the last column says why.
    """
    cluster = session.load(chosen="pods")
    with in_words():
        only = None if session.options.all_namespaces else session.namespace

    def picture() -> Shown:
        report, chosen = cluster.report(), cluster.chosen
        shown = session.sorted(
            [
                each
                for each in report.pods
                if only in (None, each.namespace)
                and (chosen is None or (each.namespace, each.name) in chosen)
            ]
        )
        measured = _measured(session, shown, use=use)
        uses = {(each.namespace, each.pod, each.container): each for each in measured or ()}
        page = show_pods(shown, datetime.now(UTC), namespace=only, wide=session.wide, uses=uses)
        if not shown and any(gap.what == "pods" and gap.whole for gap in report.gaps):
            page = [line("Pods that ask for GPUs: unknown", WARN)]
        return Shown("GpuPodList", shown, page, report.gaps, more={"uses": measured})

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
@click.argument("pod", nargs=-1, required=True, metavar="POD", shell_complete=complete_pod)
@options("Namespace of the pod.  [default: the context's]", watch=True)
def explain(session: Session, pod: tuple[str, ...]) -> None:
    """Explain why a pod waits, or where it runs.

    POD is a name, pod/NAME or NAMESPACE/NAME.

    For a pod that waits or was refused: why, what every card lacks, and the smallest change that
    would let it run. For one that runs: its cards, and who shares them. For all: what has happened
    to it since its creation, and how its containers stand or ended.
    """
    if len(pod) > 2 or (len(pod) == 2 and _KINDS.get(pod[0], pod[0]) != "pods"):
        raise CommandError("error: one pod at a time: kubectl gpu explain NAMESPACE/POD", 2)
    said, name = _split(pod[-1])
    with in_words():
        namespace = said or session.namespace
    cluster = session.load((*ALL, events_of(namespace, name)))
    if cluster.explain(namespace, name) is None:
        elsewhere = [each for each in cluster.report().pods if each.name == name]
        hint = f"there is one in namespace {elsewhere[0].namespace}" if elsewhere else ""
        _ask(cluster, PODS, namespace, name, hint)
        if cluster.explain(namespace, name) is None:
            text = f"asks for no GPU: no container has {session.names.core} in its limits"
            raise CommandError(f'error: pod "{name}" {text}')

    def picture() -> Shown:
        story = cluster.explain(namespace, name)
        if story is None:
            raise not_found("pods", name)
        page = show_story(story, datetime.now(UTC), wide=session.wide)
        return Shown("GpuPodStoryList", [story], page, story.gaps)

    session.show_all(cluster, picture)


_CODES = {Answer.FITS: 0, Answer.NOT: 1, Answer.INVALID: 1, Answer.UNKNOWN: NOT_KNOWN}


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
    """Show whether and where pods would fit, and change nothing.

    The exit code is 0 where all pods of all manifests fit, 1 where some do not, 2 where a manifest
    cannot be read, and 3 where it is not known: nodes may not be read, or nobody answers.
    """
    try:
        with in_words(2):
            manifests = [each for file in filename for each in read_manifests(file.read())]
    except UnicodeDecodeError as error:
        raise CommandError(f"error: {error}", 2) from error
    if not manifests:
        raise CommandError("error: no objects passed to fit", 2)
    try:
        cluster = session.load()
    except CommandError as error:
        error.code = NOT_KNOWN
        raise
    with in_words(2):
        reports = cluster.fit(*manifests)
    page = show_fits(reports, wide=session.wide)
    session.show(Shown("GpuFitList", reports, page, reports[0].gaps), cluster.freshness)
    sys.exit(max(_CODES[each.answer] for each in reports))


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
        for text in change_cordon(client, session.names, _split(node)[1], cards, cordon=cordon):
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
    names = tuple(_split(name)[1] for name in names)
    cluster = session.load((NODES,), chosen="nodes")
    on = f" on {' or '.join(names)}" if names else ""
    sought = f"no pod of an agent runs{on} in namespace {agent_namespace}"
    sought += " (--agent-namespace names another)"
    readings = _readings(session, agent_namespace, names, interval)
    namespace = None if session.options.all_namespaces else session.options.namespace

    def picture() -> Shown:
        (found, at), chosen = next(readings), cluster.chosen
        report = cluster.report(())
        cards = {
            card.uuid: (node.name, card.index, card.model)
            for node in report.nodes
            for card in node.cards
        }
        shown = session.sorted([x for x in found if chosen is None or ("", x.node) in chosen])
        page = show_use(shown, cards, namespace=namespace, sought=sought, at=at)
        return Shown("GpuUseList", shown, page, report.gaps, "node", {"measuredAt": at})

    session.show_all(cluster, picture)


def _readings(
    session: Session, namespace: str, names: tuple[str, ...], interval: float
) -> Iterator[tuple[tuple[NodeUse, ...], str]]:
    """Yield what agents measure and when; while nobody answers a watch has what was last measured.

    Raises:
        CommandError: they cannot be asked.
    """
    found: tuple[NodeUse, ...] = ()
    last, at = None, ""
    while True:
        now = datetime.now(UTC)
        if last is None or (now - last).total_seconds() >= interval:
            with in_words():
                try:
                    found = read_uses(session.connection.client, namespace, names or None)
                    at = f"{now:%Y-%m-%dT%H:%M:%SZ}"
                except Unavailable:
                    if last is None:
                        raise
            last = now
        yield found, at


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process."""
    quiet = logging.getLogger("common")  # its words are for servers
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    # What the client says of a kubeconfig's programs, and of a server that is not to be checked.
    logging.basicConfig(format="error: %(message)s", level=logging.ERROR)
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    try:
        words = sys.argv[1:] if arguments is None else arguments
        cli.main(as_two(words), prog_name=_PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.code if isinstance(error, CommandError) else error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        with suppress(OSError):
            sys.stdout.flush()
        sys.exit(130)
    finally:
        gc.enable()  # for who calls this as a function


def as_two(words: Sequence[str]) -> list[str]:
    """Return arguments with ``-o=json`` taken apart, which ``kubectl`` understands."""
    pairs = (
        (found[1], found[2]) if (found := _SHORT.fullmatch(word)) else (word,) for word in words
    )
    return [*chain.from_iterable(pairs)]
