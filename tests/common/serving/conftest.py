from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.serving.connections import Limits
from tests.common.serving.stages import ListenerStage, Make


@pytest.fixture
def make(certificates: Path) -> Make:
    @asynccontextmanager
    async def make(
        *, limits: Limits | None = None, handshake_seconds: float = 10
    ) -> AsyncIterator[ListenerStage]:
        stage = ListenerStage(certificates, limits or Limits(10, 10**8), handshake_seconds)
        try:
            yield stage
        finally:
            for client in stage.clients:
                client.close()
            await stage.listener.drain(seconds=0)
            await stage.wait(lambda: (stage.told.open, stage.told.flying) == (0, 0))
            stage.pool.shutdown()

    return make
