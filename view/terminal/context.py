"""Context of one command: its options, its output and the cluster that it reads."""

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import click

from common.apiserver.client import Json
from common.apiserver.errors import Rejected
from common.errors import Unavailable
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.collections import ALL, ResourceKind
from view.cluster.connection import ClusterConnection, connect
from view.cluster.live import LiveCluster
from view.cluster.timing import REAL_TIME, Timing
from view.model.reports import Freshness, Gap
from view.model.state import ClusterState
from view.model.words import describe_gaps, safe
from view.terminal.documents import CommandOutput, document, sort_by, write_document
from view.terminal.faults import CommandError, as_command_errors, not_found
from view.terminal.layout import WARN, Page, line
from view.terminal.screen import Progress, Screen
from view.terminal.words import describe_age

_REBUILD_SECONDS = 15.0
"""Seconds after which a page is built again without a change: the ages of pods have grown."""

MACHINE = ("json", "yaml")
NOT_KNOWN = 3
"""Exit code if nothing that the command needs may be read."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """Values of the common options, named as their flags; ``None`` if not given."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    all_namespaces: bool | None = None
    selector: str | None = None
    field_selector: str | None = None
    output: str | None = None
    no_headers: bool | None = None
    sort_by: str | None = None
    as_user: str | None = None
    as_group: tuple[str, ...] | None = None
    request_timeout: float | None = None
    color: bool | None = None
    domain: str | None = None
    policy: str | None = None
    watch: bool | None = None

    def over(self, other: "CommandOptions") -> "CommandOptions":
        """Return these options, completed with *other* where they are not given."""
        values = {name: getattr(self, name) for name in self.__slots__}
        given = {name: each for name, each in values.items() if each not in (None, ())}
        return replace(other, **given)


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def at_most_every(
    seconds: float,
    read: Callable[_Parameters, _Result],
    monotonic: Callable[[], float] = time.monotonic,
) -> Callable[_Parameters, _Result]:
    """Wrap *read*: return its last result until it is *seconds* old, longer if read again fails."""
    results: list[_Result] = []
    called = 0.0

    def cached(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        nonlocal called
        if not results or monotonic() - called >= seconds:
            called = monotonic()
            try:
                results[:] = [read(*args, **kwargs)]
            except Unavailable:
                if not results:
                    raise
        return results[0]

    return cached


def name_of(item: Any) -> str:
    """Return the name of an item: of its node, pod or manifest."""
    pod = getattr(item, "pod", None)
    return str(getattr(item, "name", None) or getattr(pod, "name", None) or item.node)


class CommandContext:
    """Options, screen and connection of a command."""

    def __init__(self, options: CommandOptions, timing: Timing = REAL_TIME) -> None:
        """Prepare; no request is sent yet."""
        self.options = options
        self._timing = timing
        color = options.color is not False and not os.environ.get("NO_COLOR")
        self.screen = Screen(sys.stdout, color=color)
        # What the user was told that requests wait for; ``None`` once the screen shows delays.
        self._waits: set[str] | None = set()
        self._waits_lock = threading.Lock()

    @property
    def wide(self) -> bool:
        """Whether more columns are shown (``-o wide``)."""
        return self.options.output == "wide"

    @property
    def machine(self) -> bool:
        """Whether JSON or YAML is printed."""
        return self.options.output in MACHINE

    @property
    def names(self) -> Names:
        """Names of resources and annotations."""
        return Names(self.options.domain or DEFAULT_DOMAIN)

    @cached_property
    def connection(self) -> ClusterConnection:
        """Connection to the API server.

        Raises:
            CredentialsError: there are no credentials, or they cannot be used.
        """
        options = self.options
        return connect(
            options.kubeconfig,
            options.context,
            os.environ,
            user=options.as_user or "",
            groups=options.as_group or (),
            request_timeout=options.request_timeout,
            on_wait=self._show_wait,
        )

    def _show_wait(self, status: str, seconds: float) -> None:
        """Write once what the command waits for, although several of its requests do."""
        text = f"The API server responds {status}: trying again in {seconds:g}s, as it asks"
        with self._waits_lock:
            if self._waits is None or text in self._waits:
                return
            self._waits.add(text)
        click.echo(safe(text), err=True)

    @property
    def namespace(self) -> str:
        """The namespace of the command."""
        return self.options.namespace or self.connection.namespace

    def load(self, kinds: Sequence[ResourceKind] = ALL, chosen: str = "") -> LiveCluster:
        """Read these collections; selectors apply to the resource *chosen*, if one is.

        Raises:
            CommandError: it cannot be read.
        """
        options = self.options
        if chosen and (options.selector or options.field_selector):
            one = "" if chosen == "nodes" or options.all_namespaces else self.namespace
            fields, labels = options.field_selector or "", options.selector or ""
            kinds = [*kinds, ResourceKind(chosen, fields, labels, namespace=one, chosen=True)]
        with as_command_errors():
            progress = Progress(sys.stderr)
            state = ClusterState(self.names, Policy(options.policy or "binpack"))
            cluster = LiveCluster(
                self.connection.client,
                state,
                namespace=self.namespace,
                progress=progress,
                kinds=kinds,
                timing=self._timing,
            )
            # A big cluster is tens of megabytes of objects that all stay in memory: garbage
            # collection would take a fifth of the time until the first page.
            gc.disable()
            try:
                cluster.load()
            finally:
                progress.end()
        return cluster

    def sorted(self, items: Sequence[Any]) -> list[Any]:
        """Return items in the order of ``--sort-by``."""
        return sort_by(items, self.options.sort_by) if self.options.sort_by else [*items]

    def show(self, shown: CommandOutput, fresh: Freshness) -> None:
        """Print the output in the requested format."""
        form = self.options.output
        if form in MACHINE:
            fields = document(shown, fresh, self.connection.client.rest.host)
            click.echo(write_document(fields, form), nl=False)
            return
        if form == "name":
            for item in shown.items:
                click.echo(f"{shown.resource}/{safe(name_of(item))}")
        else:
            headings = not self.options.no_headers
            page = self._with_age(shown, fresh) if headings else shown.page
            self.screen.show(page, headings=headings)
            if headings:
                return
        for text in describe_gaps(shown.gaps):  # scripts read only rows
            click.echo(safe(text), err=True)

    def _with_age(self, shown: CommandOutput, fresh: Freshness) -> Page:
        server = self.connection.client.rest.host
        age = describe_age(fresh, self._timing.now(), server)
        gaps = [line(each, WARN) for each in describe_gaps(shown.gaps)]
        if fresh.stale or self.options.watch:  # at the top, visible however long the page is
            return [age, *shown.page, *gaps]
        return [*shown.page, *gaps, line(""), age]

    def show_all(
        self,
        cluster: LiveCluster,
        build_output: Callable[[], CommandOutput],
        every: float = _REBUILD_SECONDS,
    ) -> None:
        """Print the output; with ``--watch`` again on each change, or *every* few seconds."""
        if not self.options.watch:
            shown = build_output()
            self.show(shown, cluster.freshness)
            whole = {gap.what for gap in shown.gaps if gap.whole}
            if f"{shown.resource}s" in whole and not (shown.items or shown.more.get("pods")):
                sys.exit(NOT_KNOWN)
            return
        gc.freeze()  # from now on collect garbage, except among the objects already read
        gc.enable()
        stop = threading.Event()
        version, made, last = cluster.version, -1, None
        self._waits = None
        cluster.follow(stop)
        monotonic, at = self._timing.monotonic, 0.0
        shown = CommandOutput("", (), ())
        redrawn = self.screen.is_terminal and not self.machine and self.options.output != "name"
        try:
            with self.screen.redrawing(on=redrawn) as redraw:
                while True:
                    if made != version or monotonic() - at >= every:
                        shown, made, at = build_output(), version, monotonic()
                    fresh = cluster.freshness
                    if redrawn:
                        redraw(self._with_age(shown, fresh))
                    elif (shown, fresh.stale) != last:
                        last = shown, fresh.stale
                        self.show(shown, fresh)
                    version = self._next(cluster, version, stop)
        finally:
            stop.set()
            self.connection.client.close()

    def _next(self, cluster: LiveCluster, version: int, stop: threading.Event) -> int:
        stop.wait(self._timing.pause)
        return cluster.wait_for_change(version, self._timing.redraw)


def read_object(
    cluster: LiveCluster, kind: ResourceKind, namespace: str, name: str, hint: str = ""
) -> Json:
    """Read one object and return it.

    Raises:
        CommandError: it does not exist, or may not be read (with the missing permission).
    """
    with as_command_errors():
        try:
            return cluster.load_object(kind, namespace, name)
        except Rejected as error:
            if error.status == 404:
                raise not_found(kind.what, name, hint) from error
            if error.status == 403:
                permission = ". ".join(describe_gaps([Gap(kind.what, "", "", "get")]))
                text = f"Error from server (Forbidden): {error}. {permission}"
                raise CommandError(text, NOT_KNOWN) from error
            raise
