"""Call webhooks over TLS; their certificates are verified as the API server does."""

import base64
import binascii
import ssl
from typing import Self

import aiohttp

from simulator.api.webhooks import Webhook

_LARGEST_RESPONSE = 3 * 1024 * 1024  # bytes


class WebhookCallFailed(Exception):
    """A webhook could not be called, or did not respond."""


class WebhookCaller:
    """Posts reviews and reuses connections, as the API server does."""

    def __init__(self) -> None:
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json", "User-Agent": "kube-apiserver-admission"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def post(self, webhook: Webhook, body: bytes) -> bytes:
        """Return the body of the response.

        Raises:
            WebhookCallFailed: there was no response, its status is not 200, or it is too long.
        """
        url = f"{webhook.url}?timeout={webhook.timeout_s}s"
        call = f'Post "{url}"'
        try:
            async with self._session.post(
                url,
                data=body,
                ssl=self._context(webhook.ca_bundle),
                timeout=aiohttp.ClientTimeout(total=webhook.timeout_s),
                allow_redirects=False,
            ) as response:
                received = await response.content.read(_LARGEST_RESPONSE + 1)
                while len(received) <= _LARGEST_RESPONSE and not response.content.at_eof():
                    received += await response.content.read(_LARGEST_RESPONSE)
        except TimeoutError as error:
            raise WebhookCallFailed(f"{call}: context deadline exceeded") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise WebhookCallFailed(f"{call}: {error}") from error
        if response.status != 200:
            text = received[:200].decode(errors="replace").strip()
            raise WebhookCallFailed(f"an error on the server ({response.status}: {text!r})")
        if len(received) > _LARGEST_RESPONSE:
            raise WebhookCallFailed(f"{call}: response is longer than {_LARGEST_RESPONSE} bytes")
        return received

    def _context(self, ca_bundle: str) -> ssl.SSLContext:
        # One context for each bundle: only calls with the same context share connections.
        context = self._contexts.get(ca_bundle)
        if context is None:
            context = self._contexts[ca_bundle] = _context_trusting(ca_bundle)
        return context


def _context_trusting(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(ca_bundle, validate=True).decode("ascii")
        return ssl.create_default_context(cadata=pem)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError) as error:
        raise WebhookCallFailed(
            f"unable to load root certificates: caBundle is no base64 PEM: {error}"
        ) from error
