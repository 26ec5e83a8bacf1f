"""The options of every command, named as by ``kubectl``."""

import functools
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import click

from common.text import parse_seconds
from view.terminal.completion import complete_context, complete_namespace
from view.terminal.context import CommandContext, CommandOptions

KINDS = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes"}
"""Short names of resources, as in ``kubectl``; commands have them too."""

_SHORT = re.compile(r"(-[A-Za-z])=(.*)", re.DOTALL)

_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _Seconds(click.ParamType[float]):
    """A duration as in ``kubectl``: ``30``, ``500ms``, ``1m30s``; 0 leaves the default."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        seconds = parse_seconds(f"{text}s" if text.isdecimal() else text)
        if seconds is None:
            self.fail(f"{value!r} is not a duration such as 30s", param, ctx)
        return seconds


class CommandGroup(click.Group):
    """A group whose commands also have the short names of their resources."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or short name."""
        return super().get_command(ctx, KINDS.get(cmd_name, cmd_name))


def flag(*names: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Build an option without a value; ``None`` if it is not given."""
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
    _value("--as", "as_user", text="Username to impersonate."),
    _value("--as-group", multiple=True, text="Group to impersonate; may be repeated."),
    _value(
        "--request-timeout",
        metavar="TIME",
        type=_Seconds(),
        text="Timeout of a request, for example 10s.  [default: 5s to connect, 30s for a response]",
    ),
    flag("-A", "--all-namespaces", text="Show pods of all namespaces."),
    _value("-l", "--selector", text="Label selector, for example app=train."),
    _value("--field-selector", text="Field selector, for example spec.nodeName=n1."),
    _value(
        "-o",
        "--output",
        type=_FORMATS,
        metavar=None,
        text="Output format: a table with more columns (wide), all fields (json, yaml), or names.  "
        "[default: a table]",
    ),
    flag(
        "--no-headers", text="Print rows only, for scripts; what is unknown goes to standard error."
    ),
    _value(
        "--sort-by", text="Sort by a field of -o json, for example coresFree or .metadata.name."
    ),
    click.option(
        "--color/--no-color",
        default=None,
        help="Use colors or not.  [default: colors in a terminal, unless NO_COLOR is set]",
    ),
    _value(
        "--domain",
        envvar="GPU_TURNSTILE_DOMAIN",
        text="Domain of the GPU resources, if your admin has set another.  [default: tencent.com]",
    ),
    _value(
        "--policy",
        type=_POLICIES,
        metavar=None,
        text="Which card a share gets in this cluster: the fullest on which it fits (binpack) or "
        "the emptiest (spread).  [default: binpack]",
    ),
)
_WATCH = flag("-w", "--watch", text="After listing, watch for changes; Ctrl-C to stop.")


def options(namespace: str, *, watch: bool = False) -> _Decorator:
    """Add the common options; the command is called with a :class:`CommandContext` of them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        @click.pass_context
        def run(context: click.Context, /, **values: Any) -> None:
            own = CommandOptions(
                **{name: values.pop(name, None) for name in CommandOptions.__slots__}
            )
            outer = context.parent.obj if context.parent is not None else None
            context.obj = own.over(outer) if outer is not None else own
            if context.invoked_subcommand is None:
                command(CommandContext(context.obj), **values)

        where = _value("-n", "--namespace", shell_complete=complete_namespace, text=namespace)
        for option in (*((_WATCH,) if watch else ()), *reversed(_OPTIONS), where):
            run = option(run)
        return run

    return decorate


def split(name: str) -> tuple[str, str]:
    """Split ``pod/NAME`` or ``NAMESPACE/NAME``; the namespace is empty if none is given."""
    first, slash, rest = name.partition("/")
    if slash and (first in KINDS or first in KINDS.values()):
        return split(rest) if "/" in rest else ("", rest)
    return (first, rest) if slash else ("", name)


def split_short_options(words: Sequence[str]) -> list[str]:
    """Split arguments like ``-o=json``, which ``kubectl`` accepts and click does not."""
    pairs = (
        (found[1], found[2]) if (found := _SHORT.fullmatch(word)) else (word,) for word in words
    )
    return [*chain.from_iterable(pairs)]
