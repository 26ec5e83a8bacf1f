"""The limit of open files, in a process of its own each time."""

import subprocess
import sys

_ASK = """
import resource
from agent.host.open_files import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_becomes_the_hard_one() -> None:
    script = _ASK.format(soft=64, hard=512)
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert asked.stdout.split() == [b"512", b"512", b"512"]


def test_a_limit_that_cannot_be_raised_stays() -> None:
    script = """
import resource
resource.setrlimit = lambda *_: exec("raise ValueError('not allowed to raise maximum limit')")
from agent.host.open_files import raise_limit
print(raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert asked.stdout.split() == [b"True"]
