"""How many requests a job makes, by file, task, partition and job, and what S3 charges for them.

    python benchmarks/requests.py [--quick] [--json]

Counted, not estimated: small jobs run against a store in memory behind `CountingStore`, each step in another
process, after an earlier commit to the dataset. A file costs what one more file adds to a job; the costs of a
task, a partition and a replaced file are found in the same way, and the rest is the job's own. A listing
counts as one request (a page holds 1,000 objects), and so does a bulk delete of up to 1,000. Files have one
part; each further part is one more request.

The requests of Hadoop's committers and FileOutputCommitter for a file and a task are not counted here. For
the magic committer they are derived from what Hadoop's tests of its cost expect (ITestCommitOperationCost,
HADOOP-19047). For the others, and where those tests say nothing, they are reckoned from the algorithm, and
are a lower bound: renames list and probe as they go.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from report import as_markdown, machine, show, write_section

from airflow_s3commit import Job, JobOptions, MemoryStore, register_destination, write_job
from airflow_s3commit.store.forwarding import CountingStore

if TYPE_CHECKING:
    from collections.abc import Iterator

#: US dollars a thousand requests: S3 Standard, US East (N. Virginia), as AWS listed them in November 2026.
#: Deletes and aborts are free.
PRICES = "S3 Standard, US East (N. Virginia), November 2026: $0.005 a thousand PUT, COPY, POST or LIST, "
PRICES += "$0.0004 a thousand GET or HEAD; DELETE and abort are free"
WRITE_DOLLARS, READ_DOLLARS = 0.005 / 1000, 0.0004 / 1000
READS = {"action_http_get_request", "action_http_head_request", "op_get_file_status"}
FREE = {"object_delete_request", "object_bulk_delete_request", "object_multipart_aborted"}
WORDS = {
    "action_http_get_request": "GET",
    "action_http_head_request": "HEAD",
    "multipart_upload_completed": "complete",
    "multipart_upload_list": "list parts",
    "multipart_upload_part_put": "part",
    "object_bulk_delete_request": "bulk delete",
    "object_delete_request": "delete",
    "object_list_request": "list",
    "object_multipart_aborted": "abort",
    "object_multipart_initiated": "initiate",
    "object_multipart_list": "list uploads",
    "object_put_requests": "PUT",
    "op_get_file_status": "HEAD",
}
STEPS = ("write", "seal", "commit")

#: Where the figures of others come from.
DERIVED = "derived from Hadoop's cost tests"
RECKONED = "reckoned from the algorithm"

#: By committer: requests of a file with one part, of a task, and their source.
ELSEWHERE: dict[str, tuple[Counter[str], Counter[str], str]] = {
    "Hadoop magic": (
        Counter({"initiate": 1, "part": 1, "PUT": 2, "GET": 1, "complete": 1}),
        Counter({"list": 1, "PUT": 1, "GET": 1, "delete": 1}),
        f"{DERIVED}; {RECKONED}: the task's GET, when the job commits",
    ),
    "Hadoop magic, tracked in memory": (
        Counter({"initiate": 1, "part": 1, "complete": 1}),
        Counter({"PUT": 1, "GET": 1, "delete": 1}),
        f"{DERIVED}; {RECKONED}: the task's GET, and that it does not list",
    ),
    "Hadoop directory, partitioned": (
        Counter({"initiate": 1, "part": 1, "complete": 1}),
        Counter(),
        f"{RECKONED}: pendingsets lie in the cluster's file system",
    ),
    "FileOutputCommitter v1": (
        Counter({"PUT": 1, "COPY": 2, "HEAD": 2, "delete": 2}),
        Counter({"list": 2}),
        f"{RECKONED}, at least: two renames a file",
    ),
    "FileOutputCommitter v2": (
        Counter({"PUT": 1, "COPY": 1, "HEAD": 1, "delete": 1}),
        Counter({"list": 1}),
        f"{RECKONED}, at least: one rename a file, and no way back",
    ),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A job's size.

    Attributes:
        tasks: Tasks.
        files: Files of the first task; every other one writes one file.
        partitions: Partitions; all but the first get one of the first task's files each.
        existing: Files in the first partition before the job.
    """

    tasks: int = 2
    files: int = 4
    partitions: int = 2
    existing: int = 2


def count(options: JobOptions, shape: Shape) -> dict[str, Counter[str]]:
    """Run a job of that shape and return its requests, by step."""
    memory = MemoryStore(min_part_bytes=1)
    for number in range(shape.existing):
        memory.put("lake", f"t/dt=0/old-{number}", b"x")
    # A commit of no files, because a job in mode fail would refuse existing ones.
    with write_job("s3://lake/t/", store=memory, conflict_mode="append"):
        pass
    store = CountingStore(memory)
    steps: dict[str, Counter[str]] = {}
    before: Counter[str] = Counter()

    def end(step: str) -> None:
        nonlocal before
        now = Counter(store.counters)
        steps[step] = now - before
        before = now

    job = Job.setup(store, "s3://lake/t/", options=options)
    tasks = []
    for task in range(shape.tasks):
        # Each in its own process, as in Spark: it reads the job's record.
        mine = Job.at(store, job.reference)
        with mine.task_attempt("spark", "1", str(task), "0", threads=0, min_part_bytes=1) as attempt:
            for path in _paths(shape, task):
                with attempt.open(path) as file:
                    file.write(b"new")
            tasks.append(attempt.commit())
    end("write")
    Job.at(store, job.reference).seal_stage("spark", "1", tasks)
    Job.at(store, job.reference).seal()
    end("seal")
    Job.at(store, job.reference).commit()
    end("commit")
    return steps


def _paths(shape: Shape, task: int) -> Iterator[str]:
    if task:
        yield f"dt=0/task-{task}"
        return
    for number in range(shape.files):
        # Partitions from the end on, so that an additional file lies in an existing partition.
        yield f"dt={max(0, shape.partitions - 1 - number)}/file-{number}"


def costs(options: JobOptions) -> dict[str, dict[str, Counter[str]]]:
    """Return what a file, a task, a partition, a replaced file and the job itself cost, by step."""
    shape = Shape() if options.conflict_mode != "fail" else Shape(existing=0)
    base = count(options, shape)
    more = {
        "file": replace(shape, files=shape.files + 1),
        "task": replace(shape, tasks=shape.tasks + 1),
        "partition": replace(shape, partitions=shape.partitions + 1),
        "replaced file": replace(shape, existing=shape.existing + 1),
    }
    if options.conflict_mode == "fail":
        del more["replaced file"]
    each = {name: _less(count(options, one), base) for name, one in more.items()}
    # A task of these shapes has a file in it.
    each["task"] = _less(each["task"], each["file"])
    files = shape.files + shape.tasks - 1
    own = base
    for name, times in (("file", files), ("task", shape.tasks), ("partition", shape.partitions)):
        for _ in range(times):
            own = _less(own, each[name])
    each["job"] = own
    return each


def _less(one: dict[str, Counter[str]], other: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    result = {}
    for step in STEPS:
        left = Counter(one[step])
        left.subtract(other[step])
        result[step] = Counter({name: number for name, number in left.items() if number})
    return result


def registry() -> dict[str, Counter[str]]:
    """Return the registry's requests for the first and for a later set-up at a destination."""
    store = CountingStore(MemoryStore(buckets=("lake", "ops")))
    counted = {}
    for name in ("first job", "later job"):
        before = Counter(store.counters)
        register_destination(store, "s3://ops/registry/", "s3://lake/t/")
        counted[name] = Counter(store.counters) - before
    return counted


def dollars(requests: Counter[str]) -> float:
    """Return the price of requests in US dollars, by Hadoop's names for them or by ours."""
    reads, free = READS | {"GET", "HEAD"}, FREE | {"delete", "bulk delete", "abort"}
    return sum(
        number * (0.0 if name in free else READ_DOLLARS if name in reads else WRITE_DOLLARS)
        for name, number in requests.items()
    )


def words(requests: Counter[str]) -> str:
    """Return requests in readable form."""
    named: Counter[str] = Counter()
    for name, number in requests.items():
        named[WORDS.get(name, name)] += number
    return ", ".join(f"{number} {name}" for name, number in sorted(named.items()) if number) or "none"


def together(steps: dict[str, Counter[str]]) -> Counter[str]:
    """Return the requests of all steps."""
    total: Counter[str] = Counter()
    for requests in steps.values():
        total.update(requests)
    return total


def main() -> None:
    """Count, print, and record all but the quick edition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one committer of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    options = parser.parse_args()
    committers: tuple[Any, ...] = ("magic", "directory", "partitioned")
    modes: tuple[Any, ...] = ("append", "replace") if options.quick else ("append", "replace", "fail")
    figures: dict[str, float] = {}
    rows, totals = [], []
    for committer in committers:
        for mode in modes:
            each = costs(JobOptions(committer=committer, conflict_mode=mode))
            name = f"{committer}, {mode}"
            for what, steps in each.items():
                rows.append((name, what, *(words(steps[step]) for step in STEPS)))
                for step in STEPS:
                    key = f"{committer}_{mode}_{what}_{step}".replace(" ", "_")
                    figures[key] = sum(steps[step].values())
            file, task = (together(each[what]) for what in ("file", "task"))
            totals.append((f"ours: {name}", words(file), words(task), *_prices(file, task), "counted"))
    for what, requests in registry().items():
        rows.append(("registry, if there is one", what, words(requests), "none", "none"))
        figures[f"registry_{what}".replace(" ", "_")] = sum(requests.values())
    for name, (file, task, note) in ELSEWHERE.items():
        totals.append((name, words(file), words(task), *_prices(file, task), note))
    first, second = "What each thing asks for, by step", "A file and a task, beside other committers"
    columns = ("committer, conflict mode", "each", *STEPS)
    wide = ("committer", "a file", "a task", "$ a 1,000 files", "$ a 1,000 files of 100 tasks", "from")
    show(first, columns, rows, to_stderr=options.json)
    show(second, wide, totals, to_stderr=options.json)
    if options.json:
        print(json.dumps({"benchmark": "requests", "machine": machine(), "prices": PRICES, **figures}))
    else:
        print(PRICES)
    if not options.quick:
        tables = [as_markdown(second, wide, totals), as_markdown(first, columns, rows)]
        write_section("requests", "\n\n".join([f"{PRICES}.", *tables]))


def _prices(file: Counter[str], task: Counter[str]) -> tuple[str, str]:
    alone = 1_000 * dollars(file)
    return f"{alone:.4f}", f"{alone + 100 * dollars(task):.4f}"


if __name__ == "__main__":
    main()
