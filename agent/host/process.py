"""What this process is told about itself by the kernel."""

import os
import time
from pathlib import Path


def age() -> float:
    """Return the seconds since this process was started.

    Raises:
        OSError: the kernel does not tell.
    """
    # proc(5): the 22nd field, in clock ticks since boot; the second may hold spaces.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
