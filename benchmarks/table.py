"""How long a reader takes to find the files of a table, how much memory, and how many requests.

    python benchmarks/table.py [--quick] [--json] [--older]

The store is in this process and answers at once: the figures are the reader's own processor time and memory,
and its requests are counted. On S3 the requests take time in addition, several at once. A listing counts as
one request for each 1,000 keys. Each list of files is rendered when it is read, which is part of the time;
each step is measured in a process of its own, whose memory is what Linux calls its peak, imports included.

With ``--older`` it measures instead the first set-up on a table with files of other programs, which lists
them. They have names as Spark's jobs make them, one job for each partition; the listing is made up on the
way, and the list that is written goes to disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace
from report import as_markdown, machine, show, write_section

import airflow_s3commit.protocol.model.layout as keys
from airflow_s3commit import Counts, Destination, Job, MemoryStore, dataset, history
from airflow_s3commit.protocol.model.codec import encode, sha256
from airflow_s3commit.protocol.model.table import Commit, Entry
from airflow_s3commit.protocol.steps.fold import read_table, write_checkpoint
from airflow_s3commit.reader.listing import find_table
from airflow_s3commit.store.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE = Destination("lake", "t/")
STEPS = ("history", "table", "files", "dataset")
SETUP = "set-up"
_PAGE = 1_000


class Server(MemoryStore):
    """A store with a table of many commits, which counts requests.

    Args:
        commits: Commits; each appends to a partition of its own, of a hundred.
        files: Files of each commit.

    Attributes:
        requests: Requests so far, by kind.
    """

    def __init__(self, commits: int, files: int) -> None:
        super().__init__(["lake"])
        self._files = files
        self._jobs: dict[str, int] = {}
        self._newest = ""
        for number in range(1, commits + 1):
            write_checkpoint(self, TABLE, self._commit(number))
        self.requests: Counter[str] = Counter()

    def _commit(self, number: int) -> Entry:
        job_id = str(UUID(int=number))
        counts = Counts(files=self._files, bytes=self._files << 20, rows=self._files * 1_000)
        digest = sha256(self._list(number))
        self._jobs[keys.list_key(TABLE, job_id, digest)] = number
        commit = Commit(
            mode="append", partitions={_partition(number): counts}, counts=counts, files_sha256=digest
        )
        entry = Entry(
            destination=TABLE.uri, number=number, kind="commit", prev=self._newest, since=0, job_id=job_id,
            commit=commit, nonce=f"n-{number}",
        )  # fmt: skip
        body = encode(entry)
        self._newest = sha256(body)
        self.put("lake", keys.entry_key(TABLE, number), body)
        return entry

    def _list(self, number: int) -> bytes:
        """Return the list of a commit's files, with names as Spark makes them and without statistics."""
        job_id, partition = UUID(int=number), _partition(number)
        start = f'{{"key":"t/{partition}/part-'
        end = f'-{job_id}-c000.snappy.parquet","size":1048576,"etag":"{"0" * 32}-1","rows":1000,'
        end += f'"partition":"{partition}","upload":"{"0" * 32}","statistics":null}}\n'
        return "".join(f"{start}{n:05}{end}" for n in range(self._files)).encode()

    def get(self, bucket: str, key: str, limit: int | None = None) -> Any:
        """Return an object; a list of files is rendered now."""
        self._count("GET")
        if key not in self._jobs:
            return super().get(bucket, key, limit=limit)
        super().put(bucket, key, self._list(self._jobs[key]))
        found = super().get(bucket, key, limit=limit)
        super().delete(bucket, key)
        return found

    def list_objects(self, bucket: str, prefix: str, **how: Any) -> Iterator[Any]:
        """Yield objects; each page is a request."""
        found = super().list_objects(bucket, prefix, **how)
        self._count("LIST")
        for number, info in enumerate(found):
            if number and number % _PAGE == 0:
                self._count("LIST")
            yield info

    def _count(self, kind: str) -> None:
        if hasattr(self, "requests"):
            self.requests[kind] += 1


class OlderServer(Server):
    """A store with files of Spark's own writers and no log. It keeps uploaded parts on disk.

    Args:
        jobs: Jobs, each of which wrote a partition.
        files: Files of each.
    """

    def __init__(self, jobs: int, files: int) -> None:
        super().__init__(0, files)
        self._older = jobs
        self._disk = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        self._min_part_bytes = 1
        self._bytes = 0

    def list_objects(self, bucket: str, prefix: str, **how: Any) -> Iterator[Any]:
        """Yield objects; records sort before the files."""
        yield from super().list_objects(bucket, prefix, **how)
        if how.get("recursive", True) and prefix == TABLE.prefix:
            for number in range(self._older):
                for n in range(self._files):
                    if n % _PAGE == 0:
                        self._count("LIST")
                    key = f"t/dt={number:05}/part-{n:05}-{UUID(int=number)}-c000.snappy.parquet"
                    yield ObjectInfo(key=key, size=1 << 20, etag=f"{number:016x}{n:016x}", modified=1.0)

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, body: Any) -> str:
        """Keep a part of the list on disk; its parts come in their order."""
        self._count("PUT")
        if not key.endswith(".jsonl"):
            return super().upload_part(bucket, key, upload_id, number, body)
        self._bytes += self._disk.write(body)
        return super().upload_part(bucket, key, upload_id, number, b"-")

    def head(self, bucket: str, key: str) -> Any:
        """Return an object's metadata."""
        self._count("HEAD")
        found = super().head(bucket, key)
        is_list = key.endswith(".jsonl") and self._bytes
        return replace(found, size=self._bytes) if is_list else found

    def get_range(self, bucket: str, key: str, first: int, size: int, *, etag: str) -> bytes:
        """Return a piece of the list."""
        self._count("GET")
        if not key.endswith(".jsonl"):
            return super().get_range(bucket, key, first, size, etag=etag)
        self._disk.seek(first)
        return self._disk.read(size)


def _partition(number: int) -> str:
    return f"dt=2013-{number % 12 + 1:02}-{number % 100 // 12 + 1:02}"


def _steps(server: Server) -> dict[str, Callable[[], object]]:
    # Only imported here, to keep it out of the other steps' memory.
    def open_dataset() -> object:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow.fs import LocalFileSystem  # noqa: PLC0415

        return dataset(server, TABLE, filesystem=LocalFileSystem(), schema=pa.schema([("n", pa.int64())]))

    return {
        SETUP: lambda: Job.setup(server, TABLE),
        "history": lambda: list(history(server, TABLE, limit=20)),
        "table": lambda: read_table(server, TABLE),
        "files": lambda: find_table(server, TABLE),
        "dataset": open_dataset,
    }


def _measure(commits: int, files: int, step: str, results: Any) -> None:
    server = (OlderServer if step == SETUP else Server)(commits, files)
    run = _steps(server)[step]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, cpu = time.perf_counter(), time.process_time()
    kept = run()
    seconds, used = time.perf_counter() - clock, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    results.put((seconds, used, before / 1024, peak / 1024, dict(server.requests)))
    del kept


def measure(commits: int, files: int, step: str) -> tuple[float, float, float, float, dict[str, int]]:
    """Return seconds, processor seconds, MiB before and at the peak, and requests of one step."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure, args=(commits, files, step, results))
    process.start()
    found = results.get()
    process.join()
    return found


def main() -> None:
    """Measure, print, and record all but the quick edition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the commits and of the files")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    parser.add_argument("--older", action="store_true", help="only the list of a million older files")
    options = parser.parse_args()
    less = 10 if options.quick else 1
    if options.older:
        name, title, noun = "older", "What the first set-up needs", "older jobs"
        how = "The listing is made up in the process that lists it, and the list is written to a file."
        cases = [(1_000 // less, 1_000, SETUP)]
    else:
        name, title, noun = "table", "What a reader needs", "commits"
        how = "Commits append, so all are live. History is that of the newest 20."
        cases = [(*size, step) for size in ((1_000 // less, 1_000), (10_000 // less, 1)) for step in STEPS]
    figures: dict[str, float] = {}
    rows = []
    for commits, files, step in cases:
        seconds, cpu, before, peak, requests = measure(commits, files, step)
        key = f"{step}_{commits}_{files}"
        figures |= {
            f"{key}_seconds": seconds,
            f"{key}_mib": peak,
            f"{key}_requests": sum(requests.values()),
        }
        words = ", ".join(f"{number:,} {kind}" for kind, number in sorted(requests.items()))
        table = f"{commits:,} {noun} of {files:,} files"
        rows.append((table, step, f"{seconds:.1f}", f"{cpu:.1f}", f"{before:.0f}", f"{peak:.0f}", words))
    columns = ("table", "step", "seconds", "CPU, s", "MiB before", "peak, MiB", "requests")
    show(title, columns, rows, to_stderr=options.json)
    if options.json:
        print(json.dumps({"benchmark": name, "machine": machine(), **figures}))
    if not options.quick:
        where = "A store in the same process, which answers at once; one round, a process for each step."
        write_section(name, f"{machine()} {where} {how}\n\n{as_markdown(title, columns, rows)}")


if __name__ == "__main__":
    main()
