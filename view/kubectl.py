"""Entry points of the programs ``kubectl-gpu`` and ``kubectl_complete-gpu``."""

import sys

from common.deferred import defer

# A user waits for every import: these take twice as long as all others together.
defer(
    "asyncio",
    "kubernetes",  # streams, watches, leader election
    "kubernetes.config",
    "kubernetes.dynamic",
    "kubernetes.utils",
    "yaml",
)

try:
    from view.terminal.commands import main
    from view.terminal.kubectl_complete import main as complete
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "rich":
        raise
    sys.exit("error: kubectl-gpu needs the extra kubectl: pip install 'gpu-turnstile[kubectl]'")

__all__ = ["complete", "main"]
