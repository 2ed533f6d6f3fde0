"""Memory that a query has done with is kept for the next one."""

import torch

LARGEST_THAT_COUNTS = 32 * 2**20
"""Of glibc, in bytes: larger blocks do not change what it keeps."""


def keep_freed_memory() -> None:
    """Has glibc keep up to 64 MB of what is freed, instead of giving it back to the kernel.

    A query on a CPU asks for tens of megabytes and frees them. The kernel would have to clear every page of them again
    for the next one, which takes a tenth of its time. What glibc keeps is twice the largest block that it was ever
    given back, so it is given one. Elsewhere this does nothing.
    """
    torch.empty(LARGEST_THAT_COUNTS - 64 * 1024, dtype=torch.uint8)
