"""The end of a process between two steps that touch the disk."""

import os
from collections.abc import Callable
from typing import Any

import pytest


class Killed(BaseException):
    """The end of the process: nothing is caught, nothing is cleaned up."""


def killed(at: int, steps: tuple[str, ...], act: Callable[[], object]) -> bool:
    """Act, and fail from the *at*-th call of these ``os`` functions on; return whether it came.

    A killed process does nothing more, so its cleanup fails as well.
    """
    left = at

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **keywords: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 1
            return real(*args, **keywords)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in steps:
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            act()
        except Killed:
            return True
    return False
