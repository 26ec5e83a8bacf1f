"""One run of a command: its options, where it prints, and the cluster that it asks."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from contract.names import DEFAULT_DOMAIN, Names
from placement.scoring import Policy
from view.cluster.collections import ALL, Kind
from view.cluster.connection import Connection, connect
from view.cluster.live import LiveCluster
from view.model.encoding import to_json
from view.model.state import ClusterState
from view.terminal.documents import write_document
from view.terminal.faults import in_words
from view.terminal.layout import Page
from view.terminal.progress import Progress
from view.terminal.screen import Screen

_LEAST_PAUSE = 1.0
"""Seconds between two pictures of a cluster that changes all the time."""

_LONGEST_PAUSE = 15.0
"""Seconds after which a picture is drawn anew although nothing has changed: ages go on."""


@dataclass(frozen=True, slots=True)
class Options:
    """What every command can be told; ``None`` is not told.

    Attributes:
        kubeconfig: a file.
        context: of the kubeconfig.
        namespace: instead of the context's.
        output: ``wide``, ``json`` or ``yaml``.
        color: whether styles may be used.
        domain: of resource and annotation names.
        policy: which card a share prefers, as the agents have it.
        watch: whether to go on and show what changes.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    output: str | None = None
    color: bool | None = None
    domain: str | None = None
    policy: str | None = None
    watch: bool | None = None

    def over(self, other: "Options") -> "Options":
        """Return these, and where they say nothing the others."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return replace(other, **{name: each for name, each in told.items() if each is not None})


class Session:
    """What a command works with."""

    def __init__(self, options: Options, environment: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is asked yet.

        Args:
            options: of the command.
            environment: of the process.
        """
        self.options = options
        self._environment = os.environ if environment is None else environment
        color = options.color is not False and not self._environment.get("NO_COLOR")
        self.screen = Screen(sys.stdout, color=color)
        self._connection: Connection | None = None

    @property
    def wide(self) -> bool:
        """Whether more is to be shown than usual."""
        return self.options.output == "wide"

    @property
    def names(self) -> Names:
        """The contract's names."""
        return Names(self.options.domain or DEFAULT_DOMAIN)

    @property
    def connection(self) -> Connection:
        """The API server.

        Raises:
            CredentialsError: there are no credentials, or they cannot be used.
        """
        if self._connection is None:
            options = self.options
            self._connection = connect(options.kubeconfig, options.context, self._environment)
        return self._connection

    @property
    def namespace(self) -> str:
        """The namespace that is meant."""
        return self.options.namespace or self.connection.namespace

    def load(self, kinds: Sequence[Kind] = ALL) -> LiveCluster:
        """Read the cluster.

        Raises:
            CommandError: it cannot be read.
        """
        with in_words():
            progress = Progress(sys.stderr)
            state = ClusterState(self.names, Policy(self.options.policy or "binpack"))
            cluster = LiveCluster(
                self.connection.client,
                state,
                namespace=self.namespace,
                progress=progress,
                kinds=kinds,
            )
            # A big cluster is tens of megabytes of objects that all stay: to look for garbage among
            # them takes a fifth of the time until the first page.
            gc.disable()
            try:
                cluster.load()
            finally:
                progress.end()
        return cluster

    def show(self, page: Page, value: Callable[[], Any]) -> None:
        """Print a page, or its value where a machine reads it."""
        if self.options.output in ("json", "yaml"):
            click.echo(write_document(to_json(value()), self.options.output), nl=False)
        else:
            self.screen.show(page)

    def show_all(
        self, cluster: LiveCluster, picture: Callable[[], tuple[Page, Callable[[], Any]]]
    ) -> None:
        """Print a page, and again whenever the cluster changes if that is asked for.

        Args:
            cluster: has been read.
            picture: makes the page and its value, as of now.
        """
        if not self.options.watch:
            self.show(*picture())
            return
        self.go_on()
        stop = threading.Event()
        version = cluster.version
        cluster.follow(stop)
        try:
            if self.options.output in ("json", "yaml"):
                while True:
                    self.show(*picture())
                    version = self._next(cluster, version, stop)
            with self.screen.redrawing() as redraw:
                while True:
                    redraw(picture()[0])
                    version = self._next(cluster, version, stop)
        finally:
            stop.set()
            self.connection.client.close()

    @staticmethod
    def go_on() -> None:
        """Collect garbage from here on, but not among what has been read already."""
        gc.freeze()
        gc.enable()

    @staticmethod
    def _next(cluster: LiveCluster, version: int, stop: threading.Event) -> int:
        stop.wait(_LEAST_PAUSE)
        return cluster.wait_for_change(version, _LONGEST_PAUSE)
