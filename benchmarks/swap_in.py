"""What it costs to bring an adapter into a slot, with 10, 100 and 1,000 registered: from the database, from memory.

Run `python benchmarks/swap_in.py`. A reading of Graft alone: SmolLM2, adapters of rank 8 on all projections, 16 slots,
in a SQLite database in a temporary directory (about 10 MB for each adapter). `database` keeps nothing in the host's
memory, so each version is read, checked against its hash, parsed and copied into a slot, in the background threads that
a worker uses; `memory` finds it in the host's memory, at most `--held`. Versions are asked for at random, and
none is in a slot already. Time runs from the first question to the slot. The adapters differ in one number each.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Mapping

from base_models import load
from streams import heading, percentile_ms, random_lora, start_as_worker, table

from app.contracts.adapters import AdapterRef
from app.contracts.base_models import BaseModelInfo
from app.db.migrate import upgrade
from app.db.repositories import adapters, tenants
from app.db.session import Database
from workers.inference.adapter_cache import AdapterCache
from workers.lora.adapter_file import to_peft
from workers.lora.bank import AdapterBank
from workers.runtime.adapter_loader import AdapterLoader

SLOTS, RANK = 16, 8


def register(database: Database, info: BaseModelInfo, tenant: str, first: int, last: int) -> list[AdapterRef]:
    """Store adapters with these numbers and return what asks for them."""
    weights, refs = random_lora(info, RANK, 0), []
    marked = next(iter(weights.tensors.values()))[0]
    for number in range(first, last):
        marked[0, 0] = number
        config, blob = to_peft(weights, info)
        with database.write() as session:
            version = adapters.add_uploaded_version(
                session, tenant, name=f"a{number}", base_model=info.id, weights=blob, config=config, metrics={}
            )
            refs.append(
                AdapterRef(
                    tenant_id=tenant,
                    adapter_id=version.adapter_id,
                    version_id=version.id,
                    weights_id=version.weights_id,
                    config=dict(version.config),
                )
            )
    return refs


def seconds_of(cache: AdapterCache, ref: AdapterRef) -> float:
    """Return the time to bring a version that is in no slot."""
    began = time.perf_counter()
    while cache.acquire(ref) is None:
        cache.wait(1.0)
    seconds = time.perf_counter() - began
    cache.release(ref)
    return seconds


def read(cache: AdapterCache, refs: list[AdapterRef], count: int) -> list[float]:
    """Return the times of versions drawn at random, none of which is in a slot."""
    chance, times = random.Random(0), []
    for _ in range(count):
        inside = set(cache.versions())
        outside = [ref for ref in refs if ref.key not in inside]
        times.append(seconds_of(cache, chance.choice(outside)))
    return times


def row(where: str, registered: int, times: list[float]) -> Mapping[str, str]:
    """Return a line of the table."""
    return {
        "from": where,
        "registered": str(registered),
        "p50 ms": f"{percentile_ms(times, 50):.1f}",
        "p99 ms": f"{percentile_ms(times, 99):.1f}",
        "n": str(len(times)),
    }


def main() -> None:
    """Register adapters, take the readings and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registered", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--count", type=int, default=300, help="swaps in each reading")
    parser.add_argument("--held", type=int, default=200, help="versions in the host's memory")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    start_as_worker(options.threads)
    print(heading())
    model, info = load("smollm2")
    rows, refs = [], list[AdapterRef]()
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/graft.db"
        upgrade(url)
        database = Database(url)
        with database.write() as session:
            tenant = tenants.create(session, "bench").id
        for registered in options.registered:
            refs += register(database, info, tenant, len(refs), registered)
            slots = range(min(SLOTS, registered // 2))
            for where, host_bytes in (("database", 0), ("memory", 64 * 1024**3)):
                bank = AdapterBank(model)
                loader = AdapterLoader(database, info, host_bytes=host_bytes)
                cache = AdapterCache(slots, loader, bank)
                asked = refs if where == "database" else refs[: options.held]
                for ref in asked[: len(slots)] if where == "database" else asked:
                    seconds_of(cache, ref)
                loads = loader.counts().database_loads
                rows.append(row(where, registered, read(cache, asked, options.count)))
                loaded = loader.counts().database_loads - loads
                assert loaded == (options.count if where == "database" else 0), loaded
                print(rows[-1], flush=True)
                loader.close()
                for slot in slots:
                    bank.clear(slot)
        database.dispose()
    print(table(rows))


if __name__ == "__main__":
    main()
