"""The C libraries' settings that a worker process starts with.

Memory: freed blocks are kept, on huge pages, instead of going back to the system.

Training frees and asks for the same large blocks at every step; with glibc's defaults each of them is mapped, zeroed
and faulted in anew, which costs a CPU worker a fifth of its speed.

Threads: OpenMP's threads wait for each other by spinning, by default for milliseconds. Where other work wants the same
cores, the one that spins holds up the one it waits for. A shorter spin costs nothing on an idle machine and made
decoding nearly twice as fast on a crowded one.
"""

from collections.abc import Mapping

_DEFAULTS = {
    "GLIBC_TUNABLES": (
        "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=4294967296:glibc.malloc.hugetlb=1"
    ),
    "GOMP_SPINCOUNT": "20000",
}


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker process: the given one, with these defaults where it sets none."""
    return {**_DEFAULTS, **environment}
