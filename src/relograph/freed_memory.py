"""Memory that a query has done with is kept for the next one; what was much more goes back to the system."""

import ctypes

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


def give_back_freed_memory() -> None:
    """Has glibc give the kernel back all that is free, for after something much larger than a query.

    Pillow holds pixels in blocks of 16 MB, which glibc keeps for each thread that ever freed one: a photo of 50
    megapixels would cost its hundreds of megabytes for as long as the process lives. Elsewhere this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
