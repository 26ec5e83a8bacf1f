"""Calling webhooks over TLS, verified as the API server verifies them."""

import base64
import binascii
import ssl
from typing import Self

import aiohttp

from simulator.api.webhooks import Webhook

_LARGEST_ANSWER = 3 * 1024 * 1024


class WebhookCallFailed(Exception):
    """A webhook could not be asked, or gave no answer."""


class WebhookCaller:
    """Posts reviews, keeping connections as the API server does."""

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
        """Return the body of the answer.

        Raises:
            CallFailed: there was none, or not with status 200.
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
                answer = await response.content.read(_LARGEST_ANSWER + 1)
                while len(answer) <= _LARGEST_ANSWER and not response.content.at_eof():
                    answer += await response.content.read(_LARGEST_ANSWER)
        except TimeoutError as error:
            raise WebhookCallFailed(f"{call}: context deadline exceeded") from error
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise WebhookCallFailed(f"{call}: {error}") from error
        if response.status != 200:
            text = answer[:200].decode(errors="replace").strip()
            raise WebhookCallFailed(f"an error on the server ({response.status}: {text!r})")
        if len(answer) > _LARGEST_ANSWER:
            raise WebhookCallFailed(f"{call}: the answer is longer than {_LARGEST_ANSWER} bytes")
        return answer

    def _context(self, ca_bundle: str) -> ssl.SSLContext:
        # One context for each bundle: connections are only shared within a context.
        context = self._contexts.get(ca_bundle)
        if context is None:
            context = self._contexts[ca_bundle] = _trusting(ca_bundle)
        return context


def _trusting(ca_bundle: str) -> ssl.SSLContext:
    if not ca_bundle:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(ca_bundle, validate=True).decode("ascii")
        return ssl.create_default_context(cadata=pem)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError) as error:
        raise WebhookCallFailed(
            f"unable to load root certificates: caBundle is no base64 PEM: {error}"
        ) from error
