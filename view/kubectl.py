"""Entry points of the programs ``kubectl-gpu`` and ``kubectl_complete-gpu``."""

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

from view.terminal.commands import main
from view.terminal.kubectl_complete import main as complete

__all__ = ["complete", "main"]
