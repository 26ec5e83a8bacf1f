"""``kubectl_complete-gpu``, which ``kubectl`` calls to complete commands of the plugin.

Its arguments are the words after ``kubectl gpu``, of which the last is to be completed. It prints
one candidate per line, then a colon and a directive for the shell (cobra's ``ShellCompDirective``):
4 is no file names.
"""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from view.terminal.commands import cli
from view.terminal.options import split_short_options

_NO_FILES, _FILES = ":4", ":0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the completions of the last word."""
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    complete = ShellComplete(cli, {}, "kubectl gpu", "_KUBECTL_GPU_COMPLETE")
    found = complete.get_completions(split_short_options(words[:-1]), words[-1])
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_FILES if any(item.type == "file" for item in found) else _NO_FILES)
