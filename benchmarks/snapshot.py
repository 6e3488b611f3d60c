"""How long a reader takes to find the files of a table, how much memory, and how many requests.

    python benchmarks/snapshot.py [--quick] [--json]

The store is in this process and answers at once: the figures are the reader's own processor time and memory,
and its requests are counted. On S3 the requests take time beside that, several at once. A listing counts as
one request for each 1,000 keys. Each list of files is rendered when it is read, which is part of the time;
each step is measured in a process of its own, whose memory is what Linux calls its peak, imports included.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from report import as_markdown, machine, show, write_section

import airflow_s3commit.protocol.model.layout as keys
from airflow_s3commit import Counts, Destination, ManifestRecord, MemoryStore, dataset, history
from airflow_s3commit.protocol.metadata.snapshot import read_snapshot, write_checkpoint
from airflow_s3commit.protocol.model.codec import encode
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.reader.listing import Choice, find_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLE = Destination("lake", "t/")
STEPS = ("history", "snapshot", "files", "dataset")
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
        for number in range(1, commits + 1):
            self._commit(number)
            write_checkpoint(self, TABLE, number)
        self.requests: Counter[str] = Counter()

    def _commit(self, number: int) -> None:
        job_id = str(UUID(int=number))
        counts = Counts(files=self._files, bytes=self._files << 20, rows=self._files * 1_000)
        place: dict[str, Any] = {
            "job_id": job_id, "destination": TABLE.uri, "staging": f"{TABLE.uri}__magic_job-{job_id}/"
        }  # fmt: skip
        key = keys.Layout.of(TABLE, job_id).manifest_files
        self._jobs[key] = number
        manifest = ManifestRecord(
            **place, committer="magic", conflict_mode="append", committed=0, counts=counts,
            partitions={_partition(number): counts}, replaced=Counts(files=0, bytes=0, rows=None),
            files=f"s3://lake/{key}", files_sha256=hashlib.sha256(self._list(number)).hexdigest(),
            generation=number, nonce="n",
        )  # fmt: skip
        entry = LogEntry(**place, number=number, kind="commit", manifest=manifest, nonce=f"n-{number}")
        self.put("lake", keys.entry_key(TABLE, number), encode(entry))

    def _list(self, number: int) -> bytes:
        """Return the list of a commit's files, with names as Spark makes them and without statistics."""
        job_id, partition = UUID(int=number), _partition(number)
        start = f'{{"key":"t/{partition}/part-'
        end = f'-{job_id}-c000.snappy.parquet","size":1048576,"etag":"{"0" * 32}-1","rows":1000,'
        end += f'"partition":"{partition}","upload":"{"0" * 32}","statistics":null}}\n'
        return "".join(f"{start}{n:05}{end}" for n in range(self._files)).encode()

    def get(self, bucket: str, key: str, *, limit: int | None = None) -> Any:
        """Return an object; a list of files is rendered now."""
        self._count("GET")
        if key not in self._jobs:
            return super().get(bucket, key, limit=limit)
        super().put(bucket, key, self._list(self._jobs[key]))
        found = super().get(bucket, key, limit=limit)
        super().delete(bucket, key)
        return found

    def list_objects(
        self, bucket: str, prefix: str, *, recursive: bool = True, start_after: str | None = None
    ) -> Iterator[Any]:
        """Yield objects; each page is a request."""
        found = super().list_objects(bucket, prefix, recursive=recursive, start_after=start_after)
        self._count("LIST")
        for number, info in enumerate(found):
            if number and number % _PAGE == 0:
                self._count("LIST")
            yield info

    def _count(self, kind: str) -> None:
        if hasattr(self, "requests"):
            self.requests[kind] += 1


def _partition(number: int) -> str:
    return f"dt=2013-{number % 12 + 1:02}-{number % 100 // 12 + 1:02}"


def _steps(server: Server) -> dict[str, Callable[[], object]]:
    # Only here, so that the other steps' memory is without it.
    def open_dataset() -> object:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow.fs import LocalFileSystem  # noqa: PLC0415

        return dataset(server, TABLE, filesystem=LocalFileSystem(), schema=pa.schema([("n", pa.int64())]))

    return {
        "history": lambda: list(history(server, TABLE, limit=20)),
        "snapshot": lambda: read_snapshot(server, TABLE),
        "files": lambda: find_table(server, TABLE, Choice()),
        "dataset": open_dataset,
    }


def _measure(commits: int, files: int, step: str, results: Any) -> None:
    server = Server(commits, files)
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
    """Measure, print, and write down all but the quick edition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the commits and of the files")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    options = parser.parse_args()
    less = 10 if options.quick else 1
    figures: dict[str, float] = {}
    rows = []
    for commits, files in ((1_000 // less, 1_000), (10_000 // less, 1)):
        for step in STEPS:
            seconds, cpu, before, peak, requests = measure(commits, files, step)
            key = f"{step}_{commits}_{files}"
            figures |= {
                f"{key}_seconds": seconds,
                f"{key}_mib": peak,
                f"{key}_requests": sum(requests.values()),
            }
            words = ", ".join(f"{number:,} {kind}" for kind, number in sorted(requests.items()))
            name = f"{commits:,} commits of {files:,} files"
            rows.append((name, step, f"{seconds:.1f}", f"{cpu:.1f}", f"{before:.0f}", f"{peak:.0f}", words))
    columns = ("table", "step", "seconds", "CPU, s", "MiB before", "peak, MiB", "requests")
    show("What a reader needs", columns, rows, to_stderr=options.json)
    if options.json:
        print(json.dumps({"benchmark": "snapshot", "machine": machine(), **figures}))
    if not options.quick:
        how = (
            "A store in the reader's own process, which answers at once; one round, a process for each step."
        )
        how += " Commits append, so all are live. There is no _SUCCESS, so history lists the whole log."
        write_section("snapshot", f"{machine()} {how}\n\n{as_markdown('What a reader needs', columns, rows)}")


if __name__ == "__main__":
    main()
