"""Memory that is kept between queries. What the C library keeps depends on what a process did: each case has one."""

import platform
import subprocess
import sys

import pytest

ASK_TWICE = """
import resource, torch
from relograph.localization.freed_memory import keep_freed_memory

{first}
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(6 * 2**20, dtype=torch.uint8) for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_freed_memory_is_not_asked_for_again():
    def new_pages(first: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", ASK_TWICE.format(first=first)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert new_pages("keep_freed_memory()") < 1000  # of the 12,288 that the blocks have
    assert new_pages("") > 8000
