"""``python -m view``, on a port that the kernel chooses, which no flag can ask for."""

import sys
from dataclasses import replace

from view.__main__ import main
from view.web import server
from view.web.settings import Settings


def _serve_on_free_port(settings: Settings) -> None:
    _serve(replace(settings, port=0))


_serve = server.serve
if __name__ == "__main__":
    server.serve = _serve_on_free_port
    sys.exit(main(sys.argv[1:]))
