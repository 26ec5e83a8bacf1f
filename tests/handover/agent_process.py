"""``python -m agent``, whose handover a test can watch, and hold at every step."""

import os
import socket
import sys
from functools import partial

import agent.__main__ as program
from agent.app.supervisor import Agent


def _teller() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(os.environ["HANDOVER_CONTROL"])
    made.sendall(f"{os.environ['HANDOVER_NAME']}\n".encode())
    return made


def main() -> None:
    """Run the agent; every step waits until the test says how to go on."""
    teller = _teller()
    answers = teller.makefile("r")

    def at(step: str) -> None:
        teller.sendall(f"{step}\n".encode())
        answers.readline()

    vars(program)["Agent"] = partial(Agent, at=at)
    program.main(sys.argv[1:])


if __name__ == "__main__":
    main()
