"""One run of a command: its options, where it prints, and the cluster that it asks."""

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ParamSpec, TypeVar

import click

from common.apiserver.errors import Rejected
from common.errors import Unavailable
from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.collections import ALL, ResourceKind
from view.cluster.connection import ClusterConnection, connect
from view.cluster.live import LiveCluster
from view.model.reports import Freshness, Gap
from view.model.state import ClusterState
from view.model.words import gaps_in_words, safe
from view.terminal.documents import document, sort_by, write_document
from view.terminal.faults import CommandError, in_words, not_found
from view.terminal.layout import Page, line
from view.terminal.screen import Progress, Screen
from view.terminal.words import as_of, show_gaps

_LEAST_PAUSE = 1.0
"""Seconds between two pictures of a cluster that changes all the time."""

_LONGEST_PAUSE = 2.0
"""Seconds after which a picture is drawn anew although nothing has changed: its age goes on."""

_STILL_SECONDS = 15.0
"""Seconds after which it is made anew: the ages of pods go on."""

MACHINE = ("json", "yaml")
NOT_KNOWN = 3
"""Exit code where nothing of what was asked for may be read."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What every command can be told; ``None`` is not told. Named as the flags are."""

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
        """Return these, and where they say nothing the others."""
        told = {name: getattr(self, name) for name in self.__slots__}
        said = {name: each for name, each in told.items() if each not in (None, ())}
        return replace(other, **said)


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command has found out, for people and for machines."""

    kind: Annotated[str, "of the list that machines read."]
    items: Annotated[Sequence[Any], "what is in it."]
    page: Annotated[Page, "the same for people."]
    gaps: Annotated[Sequence[Gap], "what could not be read."] = ()
    resource: Annotated[str, "by which ``-o name`` names an item."] = "pod"
    more: Annotated[Mapping[str, Any], "further fields of the list."] = field(default_factory=dict)


_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def at_most_every(seconds: float, ask: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Make what asks again once its last answer is so old; it is kept while nobody answers."""
    answers: list[_Answer] = []
    asked = 0.0

    def answer(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        nonlocal asked
        if not answers or time.monotonic() - asked >= seconds:
            asked = time.monotonic()
            try:
                answers[:] = [ask(*args, **kwargs)]
            except Unavailable:
                if not answers:
                    raise
        return answers[0]

    return answer


def name_of(item: Any) -> str:
    """Return the name of what an item is about: a node, a pod, a manifest."""
    pod = getattr(item, "pod", None)
    return str(getattr(item, "name", None) or getattr(pod, "name", None) or item.node)


class CommandContext:
    """What a command works with."""

    def __init__(self, options: CommandOptions) -> None:
        """Prepare; nothing is asked yet."""
        self.options = options
        color = options.color is not False and not os.environ.get("NO_COLOR")
        self.screen = Screen(sys.stdout, color=color)

    @property
    def wide(self) -> bool:
        """Whether more is to be shown than usual."""
        return self.options.output == "wide"

    @property
    def machine(self) -> bool:
        """Whether a program reads what is printed."""
        return self.options.output in MACHINE

    @property
    def names(self) -> Names:
        """The contract's names."""
        return Names(self.options.domain or DEFAULT_DOMAIN)

    @cached_property
    def connection(self) -> ClusterConnection:
        """The API server.

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
        )

    @property
    def namespace(self) -> str:
        """The namespace that is meant."""
        return self.options.namespace or self.connection.namespace

    def load(self, kinds: Sequence[ResourceKind] = ALL, chosen: str = "") -> LiveCluster:
        """Read the cluster.

        Raises:
            CommandError: it cannot be read.
        """
        options = self.options
        if chosen and (options.selector or options.field_selector):
            one = "" if chosen == "nodes" or options.all_namespaces else self.namespace
            fields, labels = options.field_selector or "", options.selector or ""
            kinds = [*kinds, ResourceKind(chosen, fields, labels, namespace=one, chosen=True)]
        with in_words():
            progress = Progress(sys.stderr)
            state = ClusterState(self.names, Policy(options.policy or "binpack"))
            cluster = LiveCluster(
                self.connection.client,
                state,
                namespace=self.namespace,
                progress=progress,
                kinds=kinds,
                within=options.request_timeout or None,
            )
            # A big cluster is tens of megabytes of objects that all stay: to look for garbage among
            # them takes a fifth of the time until the first page.
            gc.disable()
            try:
                cluster.load()
            finally:
                progress.end()
        return cluster

    def sorted(self, items: Sequence[Any]) -> list[Any]:
        """Return items in the order that the user wants."""
        return sort_by(items, self.options.sort_by) if self.options.sort_by else [*items]

    def show(self, shown: CommandOutput, fresh: Freshness) -> None:
        """Print what was found out, in the form that the user wants."""
        form = self.options.output
        if form in MACHINE:
            server = self.connection.client.rest.host
            fields = document(
                shown.kind, shown.items, gaps=shown.gaps, fresh=fresh, server=server, **shown.more
            )
            click.echo(write_document(fields, form), nl=False)
            return
        if form == "name":
            for item in shown.items:
                click.echo(f"{shown.resource}/{safe(name_of(item))}")
        else:
            headings = not self.options.no_headers
            page = self._aged(shown, fresh) if headings else shown.page
            self.screen.show(page, headings=headings)
            if headings:
                return
        for text in gaps_in_words(shown.gaps):  # what a script reads is rows alone
            click.echo(safe(text), err=True)

    def _aged(self, shown: CommandOutput, fresh: Freshness) -> Page:
        server = self.connection.client.rest.host
        age = as_of(fresh, time.time(), server)
        gaps = show_gaps(shown.gaps)
        if fresh.stale or self.options.watch:  # where it is seen, however long the page is
            return [age, *shown.page, *gaps]
        return [*shown.page, *gaps, line(""), age]

    def show_all(
        self,
        cluster: LiveCluster,
        picture: Callable[[], CommandOutput],
        every: float = _STILL_SECONDS,
    ) -> None:
        """Print a picture; in a watch again when the cluster changes, or *every* few seconds."""
        if not self.options.watch:
            shown = picture()
            self.show(shown, cluster.freshness)
            whole = {gap.what for gap in shown.gaps if gap.whole}
            if f"{shown.resource}s" in whole and not (shown.items or shown.more.get("pods")):
                sys.exit(NOT_KNOWN)
            return
        gc.freeze()  # collect garbage from here on, but not among what has been read already
        gc.enable()
        stop = threading.Event()
        version, made, last = cluster.version, -1, None
        cluster.follow(stop)
        at, shown = 0.0, CommandOutput("", (), ())
        redrawn = self.screen.is_terminal and not self.machine and self.options.output != "name"
        try:
            with self.screen.redrawing(on=redrawn) as redraw:
                while True:
                    if made != version or time.monotonic() - at >= every:
                        shown, made, at = picture(), version, time.monotonic()
                    fresh = cluster.freshness
                    if redrawn:
                        redraw(self._aged(shown, fresh))
                    elif (shown, fresh.stale) != last:
                        last = shown, fresh.stale
                        self.show(shown, fresh)
                    version = self._next(cluster, version, stop)
        finally:
            stop.set()
            self.connection.client.close()

    @staticmethod
    def _next(cluster: LiveCluster, version: int, stop: threading.Event) -> int:
        stop.wait(_LEAST_PAUSE)
        return cluster.wait_for_change(version, _LONGEST_PAUSE)


def read_object(
    cluster: LiveCluster, kind: ResourceKind, namespace: str, name: str, hint: str = ""
) -> None:
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
