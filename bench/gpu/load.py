"""``python -m bench.gpu.load``: a process that holds memory and uses a card for a known time.

It prints a line of JSON when it holds the memory, and another at the end.
"""

import json
import os
import time

import click

from bench.gpu.cuda import Cuda

_PERIOD = 0.1


@click.command()
@click.option("--memory", type=int, default=0, help="Bytes to hold.")
@click.option("--duty", type=click.FloatRange(0, 1), default=0.0, help="Busy part of the time.")
@click.option("--seconds", type=float, default=0.0, help="Duration in seconds.")
def main(memory: int, duty: float, seconds: float) -> None:
    """Hold memory, and keep the card busy."""
    cuda = Cuda()
    if memory:
        cuda.allocate(memory)
    if duty:
        cuda.load_spin()
    _print_json(pid=os.getpid())
    begun, busy = time.monotonic(), 0.0
    while (now := time.monotonic()) < begun + seconds:
        if duty:
            cuda.spin(duty * _PERIOD)
            busy += time.monotonic() - now
        time.sleep(max(now + _PERIOD - time.monotonic(), 0))
    _print_json(duty=busy / max(time.monotonic() - begun, _PERIOD))


def _print_json(**fields: object) -> None:
    click.echo(json.dumps(fields))


if __name__ == "__main__":
    main()
