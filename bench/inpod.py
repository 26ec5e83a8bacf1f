"""``python -m bench.inpod FOLDER ...``: the agent's command line as in its pod.

The service account's files are in *FOLDER* instead of at their fixed path. If there is a
*FOLDER*``/proc``, it replaces ``/proc``. Everything else is as with ``python -m agent``.
"""

import sys
from functools import partial
from pathlib import Path

from agent import __main__ as agent  # first: it declares the deferred imports
from agent.app import card_gauges, container_setup
from common.apiserver import access


def main(folder: Path, arguments: list[str]) -> None:
    """Run the agent."""
    access.SERVICE_ACCOUNT = folder
    if (folder / "proc").is_dir():
        for each in (card_gauges, container_setup):
            each.Cgroups = partial(each.Cgroups, folder / "proc")  # type: ignore[attr-defined]
    agent.main(arguments, prog_name="python -m agent")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
