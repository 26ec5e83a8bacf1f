"""``python -m agent``, whose handover a test can watch, and hold at every step."""

import os
import socket
from functools import partial
from pathlib import Path

import agent.__main__ as program
from agent.app.supervisor import Agent


def main(name: str, arguments: list[str], folder: Path) -> None:
    """Run the agent; every step waits until the test says how to go on.

    Args:
        name: by which the test knows it.
        arguments: of the command line.
        folder: where the test's socket and the log are.
    """
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    for key in [each for each in os.environ if "TURNSTILE" in each]:
        del os.environ[key]
    teller = socket.socket(socket.AF_UNIX)
    teller.connect(str(folder / "control"))
    teller.sendall(f"{name}\n".encode())
    answers = teller.makefile("r")

    def at(step: str) -> None:
        teller.sendall(f"{step}\n".encode())
        answers.readline()

    vars(program)["Agent"] = partial(Agent, at=at)
    program.main(arguments)
