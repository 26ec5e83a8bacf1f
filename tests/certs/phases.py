"""Clusters in which a certain phase of a rotation is about to begin."""

import copy
import functools
from collections.abc import Callable
from datetime import timedelta

from certs.rotation import Done, Wait
from tests.certs.fakes import World


def at(begin: Callable[[World], None]) -> World:
    """Return a world of one's own in which a run is about to begin."""
    return copy.deepcopy(_begun(begin))


@functools.cache
def _begun(begin: Callable[[World], None]) -> World:
    if begin is install:
        return World()
    world = World()
    assert isinstance(world.run(), Done)
    world.forget()
    begin(world)
    return world


def install(world: World) -> None:
    """Nothing is there yet."""


def installed(world: World) -> None:
    """Nothing is to do."""


def renew_serving(world: World) -> None:
    world.clock.now = world.serving().renew_at


def renew_both(world: World) -> None:
    world.clock.now = world.authority().renew_at - timedelta(days=1)
    world.run()  # after so long the serving certificate has ended
    world.forget()
    world.clock.now = world.authority().renew_at


def switch(world: World) -> None:
    renew_both(world)
    found = world.run()
    assert isinstance(found, Wait)
    world.clock.now = found.until


def drop(world: World) -> None:
    switch(world)
    found = world.run()
    assert isinstance(found, Wait)
    world.clock.now = found.until
