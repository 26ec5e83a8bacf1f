"""An agent's process on its own node.

The agent runs as in its pod: with a service account, TLS, and bytecode from earlier. In the pod,
the image has the bytecode, because the container's root file system is read-only.
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
    """Return settings of an API server with TLS; write the service account's files to *folder*."""
    make_certificates(folder)
    (folder / "token").write_text("bench", encoding="utf-8")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return Settings(tls=context)


def running_agent(  # noqa: PLR0913 -- all options are keywords
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
        ProcessFailed: the caller's block raised it; the agent's log is added.
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
