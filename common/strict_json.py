"""Decodes JSON of clients strictly."""

import json
import re
from typing import NoReturn

from common.serving.errors import BadRequest

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = b"\\u"


def decode_strictly(body: bytes) -> object:
    """Decode the body of a request.

    Raises:
        BadRequest: it is not JSON, or has characters that a response could not repeat.
    """
    try:
        text = body.decode("utf-8")
        if text.startswith("\ufeff"):
            raise BadRequest("body: is not JSON: Unexpected UTF-8 BOM")
        document: object = _DECODER.decode(text)
        # An escape may still contain half of a character, which a response could not repeat.
        if _ESCAPE in body and _SURROGATE.search(body):
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise BadRequest("body: is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"body: is not UTF-8: byte {error.start} is wrong") from error
    except UnicodeEncodeError as error:
        raise BadRequest("body: is not Unicode: it has half of a surrogate pair") from error
    except json.JSONDecodeError as error:
        raise BadRequest(f"body: is not JSON: {error}") from error
    except ValueError as error:  # Python does not read integers of thousands of digits
        raise BadRequest("body: is not JSON: it has a number too long to read") from error
    return document


def _no_constant(name: str) -> NoReturn:
    raise BadRequest(f"body: is not JSON: {name} is not a number")


# Made once, because json.loads with options makes a new one for every call.
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
