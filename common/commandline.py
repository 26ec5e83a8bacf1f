"""Shared code of the programs' command lines: errors, exit statuses and options.

A program's options are the fields of its settings: :func:`setting` declares a field together with
its flag, :func:`choice` and :func:`switch` fields with a few possible words, and :func:`options_of`
makes the options of :mod:`click`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click

from common.listener import EVERY_ADDRESS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Word = TypeVar("_Word", bound=StrEnum)
_Callback = Callable[[click.Context, click.Parameter, Any], Any]

_INTERRUPTED = 130  # as in a shell: 128 + SIGINT
_FILE = click.Path(path_type=Path)


class WholeNumber(click.IntRange):
    """A whole number from *least* to *most* as the value of an option.

    *noun* says what it counts, with an example, for messages: ``port, such as 8443``.
    """

    def __init__(self, noun: str, least: int, most: int | None = None) -> None:
        super().__init__(least, most)
        self.name = noun

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return what help texts show for the value."""
        return "INTEGER"


class Seconds(click.FloatRange):
    """A number of seconds as the value of an option; *example* is one, for messages."""

    def __init__(self, example: str, least: float, most: float | None = None) -> None:
        super().__init__(least, most)
        self.name = f"number of seconds, such as {example}"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return what help texts show for the value."""
        return "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number; ``nan``, which is in no range, and ``inf`` are none."""
        found = super().convert(value, param, ctx)
        if not isfinite(found):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return found


def run(
    command: click.Command,
    arguments: Sequence[str] | None,
    *,
    program: str,
    failures: tuple[type[Exception], ...],
    status: int = 2,
) -> int:
    """Run a command line; an error is one line on stderr and an exit status other than 0.

    The first word of the line is *program*, a package. The text of *failures* is meant for the
    user, and their exit status is *status*.
    """
    try:
        result = command.main(arguments, prog_name=f"python -m {program}", standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"{program}: error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        return _INTERRUPTED
    except failures as error:
        click.echo(f"{program}: error: {error}", err=True)
        return status
    return result if isinstance(result, int) else 0  # click returns the status of --help


def read_by(parse: Callable[[Any], Any]) -> _Callback:
    """Make the callback of an option with a value that *parse* reads."""
    return lambda _context, _option, value: parse(value)


def setting(
    name: str = "",
    *,
    default: Any = dataclasses.MISSING,
    parse: Callable[[Any], Any] | None = None,
    prefix: str = "",
    **how: Any,
) -> Any:
    """Declare a field of a dataclass, and the option that it comes from.

    Args:
        name: name of the flag, without ``--``; by default the field's.
        default: the default as on the command line, or a path, or a function that returns it;
            without it the dataclass needs a value.
        parse: reads the value, and the default.
        prefix: prefix of the environment variable, if it is not the program's.
        how: arguments of ``click.option``, such as ``help``.
    """
    metadata = {"option": (name, prefix, how)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    if callable(default):
        how["default"] = default
        return dataclasses.field(default_factory=default, metadata=metadata)
    how["default"] = str(default) if isinstance(default, Path) else default
    if parse is not None:
        how["callback"], default = read_by(parse), parse(default)
    return dataclasses.field(default=default, metadata=metadata)


def choice(default: _Word, **how: Any) -> _Word:
    """Declare a field that is a member of an enumeration; see :func:`setting`."""
    kind = type(default)
    words = click.Choice([each.value for each in kind])
    field: _Word = setting(default=default.value, parse=kind, type=words, **how)
    return field


def switch(name: str = "", words: tuple[str, str] = ("off", "on"), **how: Any) -> bool:
    """Declare a field that is true for the second of two words; see :func:`setting`."""
    off, on = words
    field: bool = setting(name, default=off, parse=on.__eq__, type=click.Choice(words), **how)
    return field


def options_of(settings: type, prefix: str) -> Callable[[_Command], _Command]:
    """Make the options of a dataclass's fields; the arguments have the names of the fields.

    Fields without :func:`setting` are ignored. Environment variables begin with *prefix*, such as
    ``GPU_TURNSTILE``.
    """

    def add(command: _Command) -> _Command:
        for each in reversed(dataclasses.fields(settings)):
            if "option" in each.metadata:
                name, other_prefix, how = each.metadata["option"]
                name = name or each.name.replace("_", "-")
                command = flag(other_prefix or prefix, name, each.name, **how)(command)
        return command

    return add


def server_options(
    prefix: str, *, port: int, clients: str, required: bool = True
) -> Callable[[_Command], _Command]:
    """Make the options of a server: address and port, certificate, and the CA of its clients.

    Args:
        prefix: prefix of their environment variables.
        port: the default port.
        clients: help text: the rule for clients with a certificate of the CA.
        required: whether the certificate is.
    """
    option = partial(flag, prefix)
    options = (
        option(
            "port",
            type=WholeNumber(f"port, such as {port}", 1, 65535),
            default=port,
            help="Port to listen on.",
        ),
        option(
            "host",
            default=EVERY_ADDRESS,
            help="Address to listen on; :: is every address, IPv4 and IPv6.",
        ),
        option(
            "cert",
            type=_FILE,
            required=required,
            help="PEM file with the serving certificate and its chain; read again when it changes.",
        ),
        option(
            "key",
            type=_FILE,
            required=required,
            help="PEM file with the private key, not encrypted.",
        ),
        option("client-ca", type=_FILE, help=f"PEM file of a CA: {clients}."),
    )

    def add(command: _Command) -> _Command:
        for each in reversed(options):
            command = each(command)
        return command

    return add


def flag(prefix: str, name: str, *names: str, **how: Any) -> Callable[[_Command], _Command]:
    """Make the option ``--name`` of :mod:`click`, and its environment variable.

    The variable begins with *prefix*, such as ``GPU_TURNSTILE_WEBHOOK``; all others are arguments
    of ``click.option``.
    """
    variable = f"{prefix}_{name.upper().replace('-', '_')}"
    return click.option(f"--{name}", *names, **{"show_envvar": True, "envvar": variable, **how})
