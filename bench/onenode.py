"""An agent's process on a node of its own, and what it is given.

The agent runs as it does in its pod: with a service account, TLS and bytecode made beforehand,
since a container's root file system is read-only and its image holds it.
"""

import signal
import ssl
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from bench.load import CARD_MEMORY, Load
from bench.process import Process, running
from bench.servers import make_certificates
from simulator.api.server import Settings
from simulator.cards import cards_file
from simulator.manifests import write_yaml

NODE = "bench"


def api_settings(folder: Path) -> Settings:
    """Make settings of an API server with TLS, and what a pod needs to trust it."""
    make_certificates(folder)
    (folder / "token").write_text("bench", encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return Settings(tls=context)


def running_agent(  # noqa: PLR0913 -- what it runs with, by keyword
    load: Load,
    folder: Path,
    url: str,
    *,
    end: signal.Signals = signal.SIGTERM,
    options: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AbstractContextManager[Process]:
    """Run the agent's own command line, with the files of :func:`api_settings` in *folder*.

    Raises:
        ProcessFailed: what was done with it has failed.
    """
    write_yaml(folder / "cards.yaml", cards_file(load.cards, CARD_MEMORY))
    command = (
        f"bench.inpod {folder} --node-name {NODE} --cards {folder}/cards.yaml"
        f" --kubelet-dir {folder}/plugins --plugin-dir {folder}/plugins"
        f" --pod-resources-socket {folder}/r.sock"
        " --http-host 127.0.0.1 --http-port 0"
    )
    server = urlsplit(url)
    variables = {
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
        **environment,
    }
    arguments = [*command.split(), *(word for pair in options.items() for word in pair)]
    return running(arguments, folder / "agent.log", variables, end=end)
