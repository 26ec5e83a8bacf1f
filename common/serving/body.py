"""Reading the body of a request, no more of it than may come."""

from typing import Any

_BROKEN = "body: breaks off, or its chunks are broken"


def read_body(
    environ: dict[str, Any], largest: int, *, broken: type[Exception], too_large: type[Exception]
) -> bytes:
    """Read the body of a request (PEP 3333).

    Args:
        environ: of the request.
        largest: how many bytes it may have. Where the length is not told, one more is read:
            whoever decodes it refuses it.
        broken: raised, with one line for the sender, where the body ends early.
        too_large: raised where it is said to be larger.
    """
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > largest:
        raise too_large(f"body: must be at most {largest} bytes")
    try:
        body: bytes = environ["wsgi.input"].read(largest + 1)
    except OSError as error:  # of servers that read while the application does
        raise broken(_BROKEN) from error
    if len(body) < length:
        raise broken(_BROKEN)
    return body
