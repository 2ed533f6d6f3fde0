"""Memory that is kept between queries. What the C library keeps depends on what a process did: each case has one."""

import platform
import subprocess
import sys

import pytest

ASK_AGAIN_AND_AGAIN = """
import random, resource, torch
from relograph.freed_memory import keep_freed_memory

{first}
random.seed(0)
for number in range(6):
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(random.randrange(2**19, 6 * 2**20), dtype=torch.uint8) for _ in range(12)]
    random.shuffle(blocks)
    while blocks:
        blocks.pop()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def new_pages(first: str) -> int:
    code = ASK_AGAIN_AND_AGAIN.format(first=first)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_freed_memory_is_seldom_asked_for_again():
    assert new_pages("keep_freed_memory()") < 0.4 * new_pages("")


LARGE_PHOTOS_BY_THREADS = """
import threading
from pathlib import Path
from PIL import Image
from relograph.freed_memory import give_back_freed_memory

def photo():
    Image.new("RGB", (6000, 4000)).transpose(Image.Transpose.ROTATE_90)

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

before = resident_mb()
for _ in range(4):
    threads = [threading.Thread(target=photo) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
kept = resident_mb() - before
give_back_freed_memory()
print(kept, resident_mb() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
def test_what_large_photos_took_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", LARGE_PHOTOS_BY_THREADS], capture_output=True, text=True, check=True)
    kept_mb, left_mb = map(float, done.stdout.split())
    assert kept_mb > 50  # or there is nothing to give back, and no reason for any of this
    assert left_mb < 20
