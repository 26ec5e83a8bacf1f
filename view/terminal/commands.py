"""``kubectl gpu``: the command line."""

import gc
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from common.apiserver.errors import REQUEST_ERRORS
from common.commandline import Seconds
from view.cluster.agents import AGENT_NAMESPACE, read_usages
from view.cluster.collections import ALL, NODES, PODS, events_of
from view.cluster.examination import collect_facts
from view.cluster.live import LiveCluster
from view.cluster.prometheus import Prometheus
from view.model.doctor.checks import run_checks
from view.model.manifest_fit import FitResult, requests_none
from view.model.queues import QueueState, WorkloadExplanation
from view.model.reports import Freshness, PodReport, Stage
from view.model.usage import ContainerUsage, with_limits
from view.model.words import rfc3339
from view.terminal.completion import complete_node, complete_pod
from view.terminal.context import (
    NOT_KNOWN,
    CommandContext,
    at_most_every,
    read_object,
)
from view.terminal.cordoning import change_cordon
from view.terminal.doctor import exit_code, show_findings
from view.terminal.documents import CommandOutput, read_manifests
from view.terminal.explanation import show_explanation, show_fits, show_queued
from view.terminal.faults import CommandError, as_command_errors, not_found
from view.terminal.layout import WARN, line
from view.terminal.nodes import STAGES_WITH_REASON, show_nodes
from view.terminal.options import KINDS, CommandGroup, flag, options, split, split_short_options
from view.terminal.pods import show_pods
from view.terminal.top import show_history, show_usage
from view.terminal.workloads import QueuedJob, find_pod, is_pod, workload_kind

_MOST_AGENTS = 20
"""Agents from which ``pods`` reads usage by default; ``top`` reads all."""

_USAGE_SECONDS = 15.0
"""Interval in which ``pods`` reads usage, however often the cluster changes."""

_WAITS_SECONDS = 2.0
"""Interval in which ``explain`` reads what a pod waits for: the template of its claim, Kueue."""

_HISTORY_SECONDS = 300.0
"""Interval in which ``top`` queries Prometheus."""

_WHERE = (
    "Namespace whose pods are read if you may not read those of all namespaces."
    "  [default: the context's]"
)
_PROGRAM = "kubectl gpu"

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=CommandGroup, invoke_without_command=True, context_settings=_SETTINGS)
@click.version_option(package_name="gpu-turnstile", prog_name=_PROGRAM)
@flag("--all", "every", text="Show one row per pod, without grouping by owner and reason.")
@options("Namespace of the pods.  [default: all; for commands the context's]", watch=True)
def cli(context: CommandContext, *, every: bool | None) -> None:
    """Show GPUs: what is free, who holds what, and why a pod is pending.

    Without a command: all nodes and their cards, then all pending, failing and refused pods with
    the reason. Only cordon and uncordon change anything.

    \b
    A pod does not start?
      kubectl gpu                         shows pending pods of all namespaces
      kubectl gpu explain NAMESPACE/POD   shows why one is pending, and what would help

    Units: 100 cores are one card; a container that requests less gets a share of one card. The
    annotation gpu-cards-CONTAINER divides a share over several. Memory is counted in blocks of 256
    MiB, unless your admin has set another size.
    """  # noqa: D301 -- click prints the lines after its mark unchanged
    _nodes(context, (), every=bool(every))


@cli.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@options(_WHERE, watch=True)
def nodes(context: CommandContext, names: tuple[str, ...]) -> None:
    """Show nodes and their cards.

    Without a name: all nodes with cards. FREE is what one more pod could get: whole cards, or the
    largest share of one card.
    """
    _nodes(context, tuple(split(name)[1] for name in names), every=False)


def _nodes(context: CommandContext, names: tuple[str, ...], *, every: bool) -> None:
    cluster = context.load(chosen="nodes")
    for name in names:
        _need_node(cluster, name)
    only = None if context.options.all_namespaces else context.options.namespace

    def build_output() -> CommandOutput:
        report = cluster.report(Stage if context.machine else STAGES_WITH_REASON)
        nodes = [
            each
            for each in report.nodes
            if (not names or each.name in names) and cluster.matches("", each.name)
        ]
        shown = replace(
            report,
            nodes=tuple(context.sorted(nodes)),
            pods=tuple(each for each in report.pods if only in (None, each.namespace)),
            denied=tuple(each for each in report.denied if only in (None, each.namespace)),
        )
        wide, named = context.wide, bool(names)
        page = show_nodes(shown, datetime.now(UTC), named=named, wide=wide, every=every)
        more = {} if named else {"pods": shown.pods, "denied": shown.denied}
        return CommandOutput("GpuNodeList", shown.nodes, page, report.gaps, "node", more)

    context.show_all(cluster, build_output)


def _need_node(cluster: LiveCluster, name: str) -> None:
    """Read one node by name, which may be permitted when listing nodes is not.

    Raises:
        CommandError: it does not exist, has no GPUs, or may not be read.
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
    help="Show the measured usage of containers, read from the agents, or not. "
    f" [default: with up to {_MOST_AGENTS} nodes]",
)
@options("Namespace of the pods.  [default: the context's]", watch=True)
def pods(context: CommandContext, *, use: bool | None) -> None:
    """Show pods that request GPUs, and their cards.

    One line per container. The last column is the reason why a pod is pending or fails.
    """
    cluster = context.load(chosen="pods")
    with as_command_errors():
        only = None if context.options.all_namespaces else context.namespace

    measure = at_most_every(_USAGE_SECONDS, partial(_measured, context, use=use))

    def build_output() -> CommandOutput:
        report = cluster.report()
        shown = context.sorted(
            [
                each
                for each in report.pods
                if only in (None, each.namespace) and cluster.matches(each.namespace, each.name)
            ]
        )
        measured = measure(shown)
        uses = {(each.namespace, each.pod, each.container): each for each in measured or ()}
        page = show_pods(shown, datetime.now(UTC), namespace=only, wide=context.wide, uses=uses)
        if not shown and any(gap.what == "pods" and gap.whole for gap in report.gaps):
            page = [line("Pods that request GPUs: unknown", WARN)]
        return CommandOutput("GpuPodList", shown, page, report.gaps, more={"uses": measured})

    context.show_all(cluster, build_output)


def _measured(
    context: CommandContext, shown: Sequence[PodReport], *, use: bool | None
) -> list[ContainerUsage] | None:
    """Return the usage of pods as agents measure it; ``None`` if it is not available."""
    running = {each.node for each in shown if each.node and each.phase == "Running"}
    if use is False or not running or (use is None and len(running) > _MOST_AGENTS):
        return None
    wanted = {(each.namespace, each.name) for each in shown}
    try:
        found = read_usages(context.connection.client, nodes=sorted(running))
    except REQUEST_ERRORS as error:
        if use:
            with as_command_errors():
                raise error
        return None
    return [
        each for node in found for each in node.containers if (each.namespace, each.pod) in wanted
    ]


@cli.command()
@click.argument("pod", nargs=-1, required=True, metavar="POD", shell_complete=complete_pod)
@options("Namespace of the pod.  [default: the context's]", watch=True)
def explain(context: CommandContext, pod: tuple[str, ...]) -> None:
    """Explain why a pod is pending, or its cards.

    POD is a name, pod/NAME or NAMESPACE/NAME; or a workload, such as deploy/NAME or job/NAME: then
    that of its pods which needs it most. Of a Job that Kueue holds: why it has no pods yet.

    For a pending or refused pod: the reason, what each card lacks, and the smallest change after
    which it would fit. For a running pod: its cards, and who shares them. For all pods: progress
    since the creation, and the state of the containers.
    """
    (given, name), word = split(pod[-1]), pod[0].partition("/")[0] if "/" in pod[0] else ""
    word = pod[0] if len(pod) == 2 else word
    if KINDS.get(word, word) == "nodes":
        raise CommandError(f"error: pods are explained; for a node: kubectl gpu nodes {name}", 2)
    kind = workload_kind(word)
    if len(pod) > 2 or (len(pod) == 2 and KINDS.get(word, word) != "pods" and not kind):
        raise CommandError("error: one pod at a time: kubectl gpu explain NAMESPACE/POD", 2)
    with as_command_errors():
        namespace = given or context.namespace
    if kind and given == word:  # unless a namespace has this name, and the pod
        kind = "" if is_pod(context, given, name) else kind
        namespace = context.namespace if kind else given
    if kind:
        chosen = find_pod(context, kind, namespace, name)
        if isinstance(chosen, QueuedJob):
            _explain_queued(context, chosen)
            return
        name = chosen
    cluster = context.load((*ALL, events_of(namespace, name)))
    if cluster.explain(namespace, name) is None:
        elsewhere = [each for each in cluster.report().pods if each.name == name]
        hint = f"in namespace {namespace}" if given else ""
        hint = f"there is one in namespace {elsewhere[0].namespace}" if elsewhere else hint
        found = read_object(cluster, PODS, namespace, name, hint)
        if cluster.explain(namespace, name) is None:
            raise CommandError(f'error: pod "{name}" {requests_none(found, context.names)}')

    def read_waits() -> None:
        cluster.load_template_of(namespace, name)
        cluster.load_queue_of(namespace, name)

    read_at_times = at_most_every(_WAITS_SECONDS, read_waits)

    def build_output() -> CommandOutput:
        read_at_times()
        explanation = cluster.explain(namespace, name)
        if explanation is None:
            raise not_found("pods", name)
        explanation = with_limits(
            explanation, _measured(context, [explanation.pod], use=None) or ()
        )
        page = show_explanation(explanation, datetime.now(UTC), wide=context.wide)
        return CommandOutput("GpuPodExplanationList", [explanation], page, explanation.gaps)

    context.show_all(cluster, build_output)


def _explain_queued(context: CommandContext, job: QueuedJob) -> None:
    """Show what Kueue has decided about a Job without pods."""
    cluster, of = context.load(), job.found["metadata"]
    read = at_most_every(_WAITS_SECONDS, cluster.report_queue)

    def build_output() -> CommandOutput:
        queue = read(of["namespace"], job.key)
        if queue is not None and queue.state is QueueState.UNKNOWN:
            raise CommandError(f"{job.error}; {queue.text}", NOT_KNOWN)
        if queue is None or not (job.marked or queue.workload):
            raise CommandError(job.error)
        created = of.get("creationTimestamp") or ""
        found = WorkloadExplanation("Job", of["namespace"], of["name"], created, queue)
        page, gaps = show_queued(found, datetime.now(UTC)), cluster.report().gaps
        return CommandOutput("GpuWorkloadExplanationList", [found], page, gaps, resource="job")

    context.show_all(cluster, build_output)


_CODES = {FitResult.FITS: 0, FitResult.NOT: 1, FitResult.INVALID: 1, FitResult.UNKNOWN: NOT_KNOWN}


@cli.command()
@click.option(
    "-f",
    "--filename",
    type=click.File("r", encoding="utf-8"),
    multiple=True,
    required=True,
    help="Manifest of a pod or a workload, such as a Deployment; - for standard input.",
)
@options(_WHERE)
def fit(context: CommandContext, filename: Sequence[Any]) -> None:
    """Show whether and where pods would fit.

    Nothing is created. The exit code is 0 if all pods of all manifests fit, 1 if some do not, 2 if
    a manifest cannot be read, and 3 if it is unknown: nodes may not be read, the API server does
    not respond, or it depends on the webhook's --claims.
    """
    try:
        with as_command_errors(2):
            manifests = [
                each for file in filename for each in read_manifests(file.read(), file.name)
            ]
    except UnicodeDecodeError as error:
        raise CommandError(f"error: {error}", 2) from error
    if not manifests:
        raise CommandError("error: no objects passed to fit", 2)
    try:
        cluster = context.load()
    except CommandError as error:
        error.code = NOT_KNOWN
        raise
    with as_command_errors(2):
        reports = cluster.fit(*manifests)
    page = show_fits(reports, wide=context.wide)
    context.show(CommandOutput("GpuFitList", reports, page, reports[0].gaps), cluster.freshness)
    sys.exit(max(_CODES[each.result] for each in reports))


def _add_cordoning(word: str, text: str) -> None:
    more = "CARD is an index or a UUID. Needs permission to get and patch nodes."

    @cli.command(word, help=f"{text}\n\n{more}")
    @click.argument("node", shell_complete=complete_node)
    @click.argument("cards", nargs=-1, required=True, metavar="CARD...")
    @options(_WHERE)
    def change(context: CommandContext, node: str, cards: tuple[str, ...]) -> None:
        client, name = context.connection.client, split(node)[1]
        with as_command_errors():
            cordon = word == "cordon"
            lines, problem = change_cordon(client, context.names, name, cards, cordon=cordon)
            for each in lines:
                click.echo(each)
            if problem:
                click.echo(f"Warning: {problem}", err=True)


_add_cordoning("cordon", "Mark cards of a node as unschedulable; running containers stay.")
_add_cordoning("uncordon", "Mark cards of a node as schedulable again.")


@cli.command()
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=complete_node)
@click.option(
    "--agent-namespace",
    metavar="NAME",
    default=AGENT_NAMESPACE,
    show_default=True,
    help="Namespace of gpu-turnstile's agents.",
)
@click.option(
    "--interval",
    type=Seconds("5", 1),
    default=5.0,
    show_default=True,
    help="Seconds between two measurements, with --watch.",
)
@click.option(
    "--prometheus",
    metavar="URL",
    envvar="GPU_TURNSTILE_PROMETHEUS",
    help="URL of a Prometheus that scrapes the agents, for example http://localhost:9090: adds the "
    "usage of the last day.  [default: only current usage]",
)
@options("Namespace of the containers.  [default: all]", watch=True)
def top(
    context: CommandContext,
    names: tuple[str, ...],
    agent_namespace: str,
    interval: float,
    prometheus: str | None,
) -> None:
    """Show what cards and containers hold and use.

    gpu-turnstile's agents measure usage on the nodes; their metrics are read through the API
    server. Without a measurement only held amounts are shown. Idle card hours of the last day come
    from a Prometheus.
    """
    try:
        past = None if prometheus is None else Prometheus(prometheus)
    except ValueError as error:
        raise CommandError(f"error: --prometheus: {error}", 2) from error
    names = tuple(split(name)[1] for name in names)
    cluster = context.load((NODES,), chosen="nodes")
    for name in names:
        if cluster.is_missing(name):
            raise not_found("nodes", name)
    on = f" on {' or '.join(names)}" if names else ""
    searched = f"no agent pod runs{on} in namespace {agent_namespace}"
    searched += " (--agent-namespace sets another)"
    client = context.connection.client
    measured = at_most_every(
        interval,
        lambda: (read_usages(client, agent_namespace, names or None), rfc3339(datetime.now(UTC))),
    )
    day = at_most_every(_HISTORY_SECONDS, lambda: None if past is None else past.last_day())
    namespace = None if context.options.all_namespaces else context.options.namespace

    def build_output() -> CommandOutput:
        with as_command_errors():
            found, at = measured()
        history = day()
        report = cluster.report(())
        cards = {
            card.uuid: (node.name, card.index, card.model)
            for node in report.nodes
            for card in node.cards
        }
        shown = context.sorted([each for each in found if cluster.matches("", each.node)])
        page = [
            *show_usage(shown, cards, namespace=namespace, searched=searched, at=at),
            *show_history(history, namespace, wide=context.wide),
        ]
        more = {"measuredAt": at, "lastDay": history}
        return CommandOutput("GpuUseList", shown, page, report.gaps, "node", more)

    context.show_all(cluster, build_output, interval)


@cli.command()
@click.option("--node", metavar="NAME", help="Check only this node.  [default: all]")
@options("Namespace for the dry run of a GPU pod; nothing is created.  [default: the context's]")
def doctor(context: CommandContext, node: str | None) -> None:
    """Check an installation.

    Checks webhook, certificates, policies, agents, cards, claims, scheduler extender, allocations
    and leftovers.

    One line per check: ok, warning, error, or unknown if you may not read what it needs; below it
    the next command to run. The exit code is 1 if there is an error, 3 if nothing may be read.
    """
    with as_command_errors(NOT_KNOWN):
        facts = collect_facts(context.connection.client, context.names, context.namespace, node)
    found = run_checks(facts, node)
    shown = CommandOutput(
        "GpuFindingList", context.sorted(found), show_findings(found), resource="check"
    )
    context.show(shown, Freshness(facts.now.timestamp()))
    sys.exit(exit_code(found))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process."""
    quiet = logging.getLogger("common")  # its messages are for servers
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    # Warnings of libraries are not for users, such as those of urllib3 about its connections.
    logging.basicConfig(format="error: %(message)s", level=logging.ERROR)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        cli.main(split_short_options(words), prog_name=_PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.code if isinstance(error, CommandError) else error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        with suppress(OSError):
            sys.stdout.flush()
        sys.exit(130)
    finally:
        gc.enable()  # for callers that go on, such as tests
