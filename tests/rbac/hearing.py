"""What a program asks of an API server while it lives, in the terms of RBAC."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from simulator.api.faults import RequestRecord
from simulator.api.server import ApiServer, Settings
from tests.rbac.recording import as_request
from tests.rbac.rules import Request


@dataclass(frozen=True)
class Heard:
    """What a program asked for.

    Attributes:
        requests: that it made.
        called: the methods of its client that it called.
        methods: those that make a request.
        user_agents: what it called itself.
    """

    requests: frozenset[Request]
    called: frozenset[str]
    methods: frozenset[str]
    user_agents: frozenset[str]


class Listener:
    """An API server, and what a program says to it."""

    def __init__(self, server: ApiServer, methods: set[str]) -> None:
        self.server = server
        self.called: set[str] = set()
        self.methods = methods

    def heard(self) -> Heard:
        """Return what was asked so far, by others than the test itself."""
        ours = [each for each in self.server.requests if is_ours(each)]
        return Heard(
            frozenset(as_request(each) for each in ours),
            frozenset(self.called),
            frozenset(self.methods),
            frozenset(each.user_agent for each in ours),
        )

    def note(self, patch: pytest.MonkeyPatch, owner: type) -> None:
        """Note every call of the methods of a class from now on."""
        for name in self.methods:
            if original := getattr(owner, name, None):
                patch.setattr(owner, name, self._noting(name, original))

    def _noting(self, name: str, original: Any) -> Any:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.called.add(name)
            return original(*args, **kwargs)

        return noting


def is_ours(record: RequestRecord) -> bool:
    """Return whether a program of ours made a request, and not the test."""
    return not record.user_agent.startswith("gpu-turnstile-simulator")


@contextmanager
def listening(methods: set[str], *owners: type) -> Iterator[Listener]:
    """Run an API server, and note the calls of these methods of the client's classes."""
    with (
        pytest.MonkeyPatch.context() as patch,
        ApiServer(Settings(bookmark_s=0.1)) as server,
    ):
        listener = Listener(server, methods)
        for owner in owners:
            listener.note(patch, owner)
        yield listener


def methods_of(module: ModuleType, name: str) -> set[str]:
    """Find the methods of a client of ours that make a request."""
    (client,) = (
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {
        method.name
        for method in client.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and {"call", "list", "watch"} & _attributes(method)
    }


def methods_named(module: ModuleType, apis: Sequence[str]) -> set[str]:
    """Find the methods of the official client that a module names, by its attributes for it."""
    return {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in apis
    }


def _attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
