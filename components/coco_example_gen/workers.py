"""Workers on the cores of one machine.

Threads start at once, but share Python's lock; processes do not, and each takes some
fifteen seconds to import what it needs.
"""

import os

# Images, for each core beyond the first, from which on processes are done earlier than threads.
_PROCESSES_PAY = 30_000


def local_options(images: int) -> list[str]:
    """Beam options for reading some number of images on this machine; none: threads do it."""
    cores = os.cpu_count() or 1
    if images * (cores - 1) < _PROCESSES_PAY:
        return []
    return ["--direct_running_mode=multi_processing", f"--direct_num_workers={cores}"]
