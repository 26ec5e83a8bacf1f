"""``kubectl_complete-gpu``, which ``kubectl`` calls for its plugins.

It gets the words after ``kubectl gpu``, the one to be completed last, and prints one candidate a
line, then a colon and what the shell is to do (cobra's ``ShellCompDirective``): 4, no file names.
"""

import sys
from collections.abc import Sequence

import click
from click.shell_completion import ShellComplete

from view.terminal.commands import cli
from view.terminal.options import as_two

_NO_FILES, _FILES = ":4", ":0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what ``kubectl gpu`` could go on with."""
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    complete = ShellComplete(cli, {}, "kubectl gpu", "_KUBECTL_GPU_COMPLETE")
    found = complete.get_completions(as_two(words[:-1]), words[-1])
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_FILES if any(item.type == "file" for item in found) else _NO_FILES)
