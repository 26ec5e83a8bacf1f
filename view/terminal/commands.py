"""``kubectl gpu``: the command line."""

import gc
import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from common.apiserver.errors import Gone, Rejected
from common.errors import Unavailable
from view.cluster.agents import AGENT_NAMESPACE, read_uses
from view.cluster.collections import ALL, NODES, PODS, events_of
from view.cluster.examination import collect_facts
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.model.doctor.checks import run_checks
from view.model.explanation import FitResult
from view.model.reports import Freshness, PodReport, Stage
from view.model.usage import ContainerUsage
from view.terminal.completion import complete_node, complete_pod
from view.terminal.context import (
    NOT_KNOWN,
    CommandContext,
    CommandOutput,
    at_most_every,
    read_object,
)
from view.terminal.cordoning import change_cordon
from view.terminal.doctor import exit_code, show_findings
from view.terminal.documents import read_manifests
from view.terminal.explanation import show_explanation, show_fits
from view.terminal.faults import CommandError, in_words, not_found
from view.terminal.layout import WARN, line
from view.terminal.nodes import UNSETTLED, show_nodes
from view.terminal.options import KINDS, CommandGroup, as_two, flag, options, split
from view.terminal.pods import show_pods
from view.terminal.top import show_history, show_use

_MOST_ASKED = 20
"""Agents that ``pods`` asks for what they measure; ``top`` asks all."""

_ASKED_SECONDS = 15.0
"""From one time that ``pods`` asks them to the next, however often the cluster changes."""

_HISTORY_SECONDS = 300.0
"""From one time that ``top`` asks Prometheus to the next."""

_WHERE = (
    "Pods of this namespace are looked at where you may not read those of all."
    "  [default: the context's]"
)
_PROGRAM = "kubectl gpu"

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package_name="gpu-turnstile", prog_name=_PROGRAM)
@flag(
    "--all",
    "every",
    text="A row for each pod that waits, and not for those of one owner and cause.",
)
@options("Pods of this namespace alone.  [default: of all; for commands the context's]", watch=True)
def cli(session: CommandContext, *, every: bool | None) -> None:
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
def nodes(session: CommandContext, names: tuple[str, ...]) -> None:
    """Show nodes and their cards.

    Without a name: all nodes that have cards. FITS says what one more pod could get: the largest
    share of one card, or how many cards that nobody uses.
    """
    _nodes(session, tuple(split(name)[1] for name in names), every=False)


def _nodes(session: CommandContext, names: tuple[str, ...], *, every: bool) -> None:
    cluster = session.load(chosen="nodes")
    for name in names:
        _need_node(cluster, name)
    only = None if session.options.all_namespaces else session.options.namespace

    def picture() -> CommandOutput:
        report = cluster.report(Stage if session.machine else UNSETTLED)
        nodes = [
            each
            for each in report.nodes
            if (not names or each.name in names) and cluster.chose("", each.name)
        ]
        shown = replace(
            report,
            nodes=tuple(session.sorted(nodes)),
            pods=tuple(each for each in report.pods if only in (None, each.namespace)),
            denied=tuple(each for each in report.denied if only in (None, each.namespace)),
        )
        wide, named = session.wide, bool(names)
        page = show_nodes(shown, datetime.now(UTC), named=named, wide=wide, every=every)
        more = {} if named else {"pods": shown.pods, "denied": shown.denied}
        return CommandOutput("GpuNodeList", shown.nodes, page, report.gaps, "node", more)

    session.show_all(cluster, picture)


def _need_node(cluster: LiveCluster, name: str) -> None:
    """Read a node that the user has named, which may be allowed though nodes may not be listed.

    Raises:
        CommandError: there is none, it has no GPUs, or it may not be read.
    """
    if any(each.name == name for each in cluster.report(()).nodes):
        return
    read_object(cluster, NODES, "", name)
    if all(each.name != name for each in cluster.report(()).nodes):
        raise CommandError(f'error: node "{name}" has no GPUs')


@cli.command()
@click.option(
    "--use/--no-use",
    default=None,
    help="Whether to ask the GPU nodes what containers use, where that is measured. "
    f" [default: of up to {_MOST_ASKED} nodes]",
)
@options("Pods of this namespace.  [default: the context's]", watch=True)
def pods(session: CommandContext, *, use: bool | None) -> None:
    """Show pods that ask for GPUs, and what they got.

    One line a container. Waiting pods have no card, and the last column says why.
    """
    cluster = session.load(chosen="pods")
    with in_words():
        only = None if session.options.all_namespaces else session.namespace

    measure = at_most_every(_ASKED_SECONDS, partial(_measured, session, use=use))

    def picture() -> CommandOutput:
        report = cluster.report()
        shown = session.sorted(
            [
                each
                for each in report.pods
                if only in (None, each.namespace) and cluster.chose(each.namespace, each.name)
            ]
        )
        measured = measure(shown)
        uses = {(each.namespace, each.pod, each.container): each for each in measured or ()}
        page = show_pods(shown, datetime.now(UTC), namespace=only, wide=session.wide, uses=uses)
        if not shown and any(gap.what == "pods" and gap.whole for gap in report.gaps):
            page = [line("Pods that ask for GPUs: unknown", WARN)]
        return CommandOutput("GpuPodList", shown, page, report.gaps, more={"uses": measured})

    session.show_all(cluster, picture)


def _measured(
    session: CommandContext, shown: Sequence[PodReport], *, use: bool | None
) -> list[ContainerUsage] | None:
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
def explain(session: CommandContext, pod: tuple[str, ...]) -> None:
    """Explain why a pod waits, or where it runs.

    POD is a name, pod/NAME or NAMESPACE/NAME.

    For a pod that waits or was refused: why, what every card lacks, and the smallest change that
    would let it run. For one that runs: its cards, and who shares them. For all: what has happened
    to it since its creation, and how its containers stand or ended.
    """
    if len(pod) > 2 or (len(pod) == 2 and KINDS.get(pod[0], pod[0]) != "pods"):
        raise CommandError("error: one pod at a time: kubectl gpu explain NAMESPACE/POD", 2)
    said, name = split(pod[-1])
    with in_words():
        namespace = said or session.namespace
    cluster = session.load((*ALL, events_of(namespace, name)))
    if cluster.explain(namespace, name) is None:
        elsewhere = [each for each in cluster.report().pods if each.name == name]
        hint = f"there is one in namespace {elsewhere[0].namespace}" if elsewhere else ""
        read_object(cluster, PODS, namespace, name, hint)
        if cluster.explain(namespace, name) is None:
            text = f"asks for no GPU: no container has {session.names.core} in its limits"
            raise CommandError(f'error: pod "{name}" {text}')

    def picture() -> CommandOutput:
        story = cluster.explain(namespace, name)
        if story is None:
            raise not_found("pods", name)
        page = show_explanation(story, datetime.now(UTC), wide=session.wide)
        return CommandOutput("GpuPodStoryList", [story], page, story.gaps)

    session.show_all(cluster, picture)


_CODES = {FitResult.FITS: 0, FitResult.NOT: 1, FitResult.INVALID: 1, FitResult.UNKNOWN: NOT_KNOWN}


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
def fit(session: CommandContext, filename: Sequence[Any]) -> None:
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
    session.show(CommandOutput("GpuFitList", reports, page, reports[0].gaps), cluster.freshness)
    sys.exit(max(_CODES[each.answer] for each in reports))


def _add_cordoning(word: str, text: str) -> None:
    more = "CARD is an index or a UUID. You need the right to get and patch nodes."

    @cli.command(word, help=f"{text}\n\n{more}")
    @click.argument("node", shell_complete=complete_node)
    @click.argument("cards", nargs=-1, required=True, metavar="CARD...")
    @options(_WHERE)
    def change(session: CommandContext, node: str, cards: tuple[str, ...]) -> None:
        client, name = session.connection.client, split(node)[1]
        with in_words():
            for said in change_cordon(client, session.names, name, cards, cordon=word == "cordon"):
                click.echo(said)


_add_cordoning("cordon", "Keep new containers from cards of a node; running ones stay.")
_add_cordoning("uncordon", "Let new containers have cards of a node again.")


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
@click.option(
    "--prometheus",
    metavar="URL",
    envvar="GPU_TURNSTILE_PROMETHEUS",
    help="A Prometheus that scrapes the agents, such as http://localhost:9090: what pods held and "
    "left idle in the last day.  [default: only what is held and used now]",
)
@options("Containers of this namespace alone.  [default: of all]", watch=True)
def top(
    session: CommandContext,
    names: tuple[str, ...],
    agent_namespace: str,
    interval: float,
    prometheus: str | None,
) -> None:
    """Show what cards and containers use of what they hold.

    Measured on the nodes by gpu-turnstile's agents, which are asked through the API server. Where
    they do not measure, that is said, and what is held is shown. What pods left idle in the last
    day is asked of a Prometheus.
    """
    try:
        past = None if prometheus is None else Prometheus(prometheus)
    except ValueError as error:
        raise CommandError(f"error: --prometheus: {error}", 2) from error
    names = tuple(split(name)[1] for name in names)
    cluster = session.load((NODES,), chosen="nodes")
    on = f" on {' or '.join(names)}" if names else ""
    sought = f"no pod of an agent runs{on} in namespace {agent_namespace}"
    sought += " (--agent-namespace names another)"
    client = session.connection.client
    measured = at_most_every(
        interval,
        lambda: (
            read_uses(client, agent_namespace, names or None),
            f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        ),
    )
    day = at_most_every(_HISTORY_SECONDS, lambda: None if past is None else past.last_day())
    namespace = None if session.options.all_namespaces else session.options.namespace

    def picture() -> CommandOutput:
        with in_words():
            found, at = measured()
        history = day()
        report = cluster.report(())
        cards = {
            card.uuid: (node.name, card.index, card.model)
            for node in report.nodes
            for card in node.cards
        }
        shown = session.sorted([each for each in found if cluster.chose("", each.node)])
        page = [
            *show_use(shown, cards, namespace=namespace, sought=sought, at=at),
            *show_history(history, namespace, wide=session.wide),
        ]
        more = {"measuredAt": at, "lastDay": history}
        return CommandOutput("GpuUseList", shown, page, report.gaps, "node", more)

    session.show_all(cluster, picture, interval)


@cli.command()
@click.option("--node", metavar="NAME", help="Only this node.  [default: all]")
@options("Where a GPU pod is tried, as a dry run: nothing is created.  [default: the context's]")
def doctor(session: CommandContext, node: str | None) -> None:
    """Find what is wrong with an installation.

    Webhook, certificates, policies, agents, cards, scheduler extender, records, leftovers.

    One line a check: ok, warning, error, or unknown where you may not read what it needs; below
    it what to run next. The exit code is 1 where there is an error, 3 where nothing may be read.
    """
    with in_words(NOT_KNOWN):
        facts = collect_facts(session.connection.client, session.names, session.namespace, node)
    found = run_checks(facts, node)
    shown = CommandOutput(
        "GpuFindingList", session.sorted(found), show_findings(found), resource="check"
    )
    session.show(shown, Freshness(facts.now.timestamp()))
    sys.exit(exit_code(found))


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
