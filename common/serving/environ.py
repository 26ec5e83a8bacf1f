"""An ASGI request as the environment of a WSGI application (PEP 3333)."""

import sys
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

VERIFIED = "gpu_turnstile.verified"
"""Key of the environment: whether the client presented a valid certificate."""


def make_environ(scope: dict[str, Any], *, verified: bool) -> dict[str, Any]:
    """Return the environment of a request, without its body.

    Args:
        scope: of the request.
        verified: whether the client presented a valid certificate.
    """
    host, port = scope["server"] or ("", 0)
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": _path(scope["raw_path"]),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": (scope["client"] or ("",))[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        VERIFIED: verified,
    }
    for name, value in scope["headers"]:
        key, text = _key(name), value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


@lru_cache(maxsize=256)
def _path(raw: bytes) -> str:
    return unquote_to_bytes(raw or b"/").decode("latin-1")


@lru_cache(maxsize=256)
def _key(name: bytes) -> str:
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
