"""What every command can be told, as people know it from ``kubectl``."""

import functools
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import click

from view.terminal.completion import complete_context, complete_namespace
from view.terminal.context import CommandContext, CommandOptions

KINDS = {"pod": "pods", "po": "pods", "node": "nodes", "no": "nodes"}
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


class CommandGroup(click.Group):
    """Commands with the short names of their resources."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or a short one."""
        return super().get_command(ctx, KINDS.get(cmd_name, cmd_name))


def flag(*names: str, text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make an option without a value, which may also not be said."""
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
    flag("-A", "--all-namespaces", text="Pods of all namespaces."),
    _value("-l", "--selector", text="Only what has such labels, such as app=train."),
    _value("--field-selector", text="Only what has such fields, such as spec.nodeName=n1."),
    _value(
        "-o",
        "--output",
        type=_FORMATS,
        metavar=None,
        text="More columns (wide), all that is known (json, yaml), or names.  [default: a table]",
    ),
    flag("--no-headers", text="Rows alone, for scripts; what is unknown goes to standard error."),
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
_WATCH = flag("-w", "--watch", text="Go on, and show changes as they come; Ctrl-C ends it.")


def options(namespace: str, *, watch: bool = False) -> _Decorator:
    """Add what every command can be told; a command is handed a session made of it."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        @click.pass_context
        def run(context: click.Context, /, **given: Any) -> None:
            own = CommandOptions(
                **{name: given.pop(name, None) for name in CommandOptions.__slots__}
            )
            outer = context.parent.obj if context.parent is not None else None
            context.obj = own.over(outer) if outer is not None else own
            if context.invoked_subcommand is None:
                command(CommandContext(context.obj), **given)

        where = _value("-n", "--namespace", shell_complete=complete_namespace, text=namespace)
        for option in (*((_WATCH,) if watch else ()), *reversed(_OPTIONS), where):
            run = option(run)
        return run

    return decorate


def split(name: str) -> tuple[str, str]:
    """Take ``pod/NAME`` and ``NAMESPACE/NAME`` apart; the namespace is empty where none is said."""
    first, slash, rest = name.partition("/")
    if slash and (first in KINDS or first in KINDS.values()):
        return split(rest) if "/" in rest else ("", rest)
    return (first, rest) if slash else ("", name)


def as_two(words: Sequence[str]) -> list[str]:
    """Return arguments with ``-o=json`` taken apart, which ``kubectl`` understands."""
    pairs = (
        (found[1], found[2]) if (found := _SHORT.fullmatch(word)) else (word,) for word in words
    )
    return [*chain.from_iterable(pairs)]
