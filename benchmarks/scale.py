"""How long a commit takes, and how much memory, by the number of its files and by their size.

    python benchmarks/scale.py [--quick] [--json]

By number: jobs of 1,000 to 1,000,000 pending uploads (1,000 a task) are sealed and committed, each
step in a process of its own, whose peak resident size the system reports. The uploads exist only in
pendingsets: the server, `null_server.py`, answers their completion as S3 would and makes no object, but
keeps all records. Our bound of 3,000 requests a second is lifted, except in the row that says so.

By bytes a file, recorded: jobs of equally many uploads, of 1 KiB to 5 GiB each, are committed in the same
way, in turn, round after round. A completion sends an ETag for each part; apart from that, time and memory
are flat. The case of 1 MiB in as many parts as 5 GiB have tells the two apart.

Processor time is a step's own, without starting Python and importing.

By bytes a file, real: commits of 40 files of 1 KiB to 16 MiB on SeaweedFS. No byte is copied: time is flat.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from commit_rate import BUCKET, null_server
from report import as_markdown, machine, show, write_section

from airflow_s3commit import CommittedTask, Job, JobOptions, JobReference, S3Config, S3Store
from airflow_s3commit.protocol.model.codec import sha256
from airflow_s3commit.protocol.model.pendingset import PendingSet, PendingUpload, TaskExtra, UploadExtra
from airflow_s3commit.testing.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator

ETAG = "9b2cf535f27731c974343645a3985328"
DESTINATION = f"s3://{BUCKET}/flights/"
FILES_A_TASK = 1_000
#: Bytes and parts of a file whose size does not matter.
FILE = (134_217_728, 2)
REAL_FILES = 40
MIB = 1024 * 1024

#: Bytes and parts of the files of jobs that differ in nothing else: parts of 64 MiB, except one of them.
RECORDED = {
    "1 KiB, 1 part": (1024, 1),
    "1 MiB, 1 part": (MIB, 1),
    "64 MiB, 1 part": (64 * MIB, 1),
    "5 GiB, 80 parts": (5 * 1024 * MIB, 80),
    "1 MiB, as if of 80 parts": (MIB, 80),
}
COLUMNS = (
    "files",
    "seal, s",
    "commit, s",
    "files/s",
    "CPU, µs a file",
    "commit, MiB",
    "peak, MiB",
)
RECORDED_COLUMNS = ("bytes a file", "commit, s", "lowest to highest", "CPU, µs a file", "to the first", "MiB")


def pend(store: S3Store, files: int, file: tuple[int, int] = FILE) -> tuple[Job, list[CommittedTask]]:
    """Set up a job whose tasks have recorded this number of uploads, each of ``file`` bytes and parts."""
    options = JobOptions(committer="partitioned", conflict_mode="replace")
    job = Job.setup(store, DESTINATION, options=options)
    starts = range(0, files, FILES_A_TASK)
    with ThreadPoolExecutor(8) as executor:
        return job, list(executor.map(lambda first: _pendingset(store, job, first, files, file), starts))


def _pendingset(store: S3Store, job: Job, first: int, files: int, file: tuple[int, int]) -> CommittedTask:
    size, parts = file
    job_id, count = job.reference.job_id, min(FILES_A_TASK, files - first)
    task = f"{first // FILES_A_TASK:05d}"
    commits = [
        PendingUpload(
            uri=f"{DESTINATION}dt=2013-01-{n % 30 + 1:02d}/part-{n:07d}-{job_id}.parquet",
            uploadId=f"upload-{n}",
            bucket=BUCKET,
            destinationKey=f"flights/dt=2013-01-{n % 30 + 1:02d}/part-{n:07d}-{job_id}.parquet",
            etags=[ETAG] * parts,
            length=size,
            partCount=parts,
            jobId=job_id,
            s3commit=UploadExtra(upload=f"00000000-0000-4000-8000-{n:012d}", rows=1_000_000),
        )
        for n in range(first, first + count)
    ]
    extra = TaskExtra(stage="spark", stage_attempt="1", task=task, attempt="0", nonce="-")
    commits = [upload.in_format(JobOptions().pendingset_format) for upload in commits]
    body = msgspec.json.encode(PendingSet(jobId=job_id, commits=commits, s3commit=extra))
    key = job._context.layout.pendingset("spark", "1", task, "0")  # noqa: SLF001 - no task wrote it
    store.put(BUCKET, key, body)
    return CommittedTask(
        stage="spark", stage_attempt="1", task=task, attempt="0", location=f"s3://{BUCKET}/{key}",
        sha256=sha256(body), files=count, bytes=count * size, rows=count * 1_000_000,
    )  # fmt: skip


def in_a_process(step: str, config: S3Config, reference: JobReference, *more: str) -> dict[str, float]:
    """Take a step of a job in its own process; return its seconds, processor seconds and MiB."""
    command = [sys.executable, __file__, "--step", step, str(config.endpoint_url), *more]
    plain = json.dumps(reference.to_dict())
    ended = subprocess.run(command, input=plain, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(ended.stdout)
    return result


def take_step(step: str, endpoint: str, per_second: str | None) -> None:
    """Take a step, and print its seconds, processor seconds and peak MiB as JSON."""
    bound = float(per_second) if per_second else None
    config = S3Config(endpoint, "us-east-1", "an-access-key", "a-secret-key")
    store = S3Store.connect(config, requests_per_second=bound)
    told: dict[str, Any] = json.loads(sys.stdin.read())
    tasks = [CommittedTask.from_dict(task) for task in told.pop("tasks", ())]
    job = Job.at(store, JobReference.from_dict(told))
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    if step == "seal":
        job.seal_stage("spark", "1", tasks)
        job.seal()
    else:
        job.commit()
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "seconds": time.monotonic() - began,
        "cpu": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
        "mib": used.ru_maxrss / 1024,
    }
    print(json.dumps(result))


def by_number(counts: list[tuple[int, float | None]]) -> Iterator[tuple[int, float | None, dict[str, Any]]]:
    """Commit jobs with these numbers of files, each with its limit of requests a second, or none."""
    for count, bound in counts:
        with null_server(0) as config:
            yield count, bound, _steps(config, count, FILE, bound)


def _steps(
    config: S3Config, count: int, file: tuple[int, int], bound: float | None = None
) -> dict[str, dict[str, float]]:
    """Seal and commit a job; return what each took."""
    job, tasks = pend(S3Store.connect(config), count, file)
    reference = job.reference
    with_tasks = _WithTasks(reference, tasks)
    steps = {"seal": in_a_process("seal", config, with_tasks)}  # type: ignore[arg-type]
    steps["commit"] = in_a_process("commit", config, reference, *([str(bound)] if bound else []))
    manifest = job.manifest()
    assert manifest is not None
    assert manifest.counts.files == count
    return steps


def by_recorded_size(count: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Commit jobs of uploads of each size, in turn; return what their commits took."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in RECORDED}
    for _ in range(rounds):
        for name, file in RECORDED.items():
            with null_server(0) as config:
                taken[name].append(_steps(config, count, file)["commit"])
    return taken


class _WithTasks:
    """A job's reference and its committed tasks, as the process that seals them gets them."""

    def __init__(self, reference: JobReference, tasks: list[CommittedTask]) -> None:
        self._plain = {**reference.to_dict(), "tasks": [task.to_dict() for task in tasks]}

    def to_dict(self) -> dict[str, Any]:
        """Return both as plain values."""
        return self._plain


def by_size(sizes: list[int], rounds: int) -> dict[int, list[float]]:
    """Commit real files of each size, in turn; return the commits' milliseconds."""
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder), (BUCKET,)) as server:
        store = S3Store.connect(server.config)
        numbers = itertools.count()
        for _ in range(rounds):
            for size in sizes:
                taken[size].append(_commit_of(store, f"s3://{BUCKET}/t{next(numbers)}/", size))
    return taken


def _commit_of(store: S3Store, destination: str, size: int) -> float:
    job = Job.setup(store, destination, options=JobOptions(committer="magic", conflict_mode="append"))
    with job.task_attempt("spark", "1", "0", "0", part_bytes=16 * MIB) as attempt:
        for number in range(REAL_FILES):
            with attempt.open(f"part-{number:05d}.bin") as file:
                file.write(bytes(size))
        tasks = [attempt.commit()]
    job.seal_stage("spark", "1", tasks)
    job.seal()
    began = time.perf_counter()
    job.commit()
    return (time.perf_counter() - began) * 1000


def numbers(figures: dict[str, float], *, quick: bool, to_stderr: bool) -> str:
    """Measure by number, print the table, add to ``figures``, and return the table as Markdown."""
    counts: list[tuple[int, float | None]] = [(1_000, None), (10_000, None)]
    if not quick:
        counts += [(100_000, None), (100_000, 3_000.0), (1_000_000, None)]
    rows = []
    for count, bound, steps in by_number(counts):
        commit = steps["commit"]
        peak = max(step["mib"] for step in steps.values())
        name = f"{count:,}" + (f", {bound:,.0f}/s bound" if bound else "")
        seconds = (f"{steps[step]['seconds']:,.1f}" for step in ("seal", "commit"))
        rate, cost = count / commit["seconds"], commit["cpu"] / count * 1e6
        rows.append((name, *seconds, f"{rate:,.0f}", f"{cost:,.0f}", f"{commit['mib']:,.0f}", f"{peak:,.0f}"))
        if bound is None:
            figures[f"commit_seconds_{count}"] = round(commit["seconds"], 2)
            figures[f"commit_peak_mib_{count}"] = round(commit["mib"], 1)
            figures[f"peak_mib_{count}"] = round(peak, 1)
    title = "By number of files, null server"
    show(title, COLUMNS, rows, to_stderr=to_stderr)
    return as_markdown(title, COLUMNS, rows)


def recorded_sizes(figures: dict[str, float], *, quick: bool, to_stderr: bool) -> str:
    """Measure by recorded bytes, with the same output as `numbers`."""
    count, rounds = (4_000, 1) if quick else (10_000, 3)
    taken = by_recorded_size(count, rounds)
    costs = {name: statistics.median(one["cpu"] for one in each) / count for name, each in taken.items()}
    peaks = {name: max(one["mib"] for one in each) for name, each in taken.items()}
    first, *_ = RECORDED
    rows = []
    for name, each in taken.items():
        seconds = [one["seconds"] for one in each]
        spread = f"{min(seconds):,.1f} to {max(seconds):,.1f}"
        beside = f"{costs[name] / costs[first]:.2f}"
        rows.append(
            (
                name,
                f"{statistics.median(seconds):,.1f}",
                spread,
                f"{costs[name] * 1e6:,.0f}",
                beside,
                f"{peaks[name]:,.0f}",
            )
        )
    figures["cpu_ratio_64_mib_to_1_kib"] = round(costs["64 MiB, 1 part"] / costs[first], 2)
    figures["cpu_ratio_5_gib_to_1_mib_of_as_many_parts"] = round(
        costs["5 GiB, 80 parts"] / costs["1 MiB, as if of 80 parts"], 2
    )
    title = f"By bytes a file, as recorded, {count:,} files, null server"
    show(title, RECORDED_COLUMNS, rows, to_stderr=to_stderr)
    return as_markdown(title, RECORDED_COLUMNS, rows)


def real_sizes(figures: dict[str, float], *, quick: bool, to_stderr: bool) -> str:
    """Measure by the bytes of real files, with the same output as `numbers`."""
    sizes = [1024, MIB] if quick else [1024, MIB, 4 * MIB, 16 * MIB]
    taken = by_size(sizes, 3 if quick else 5)
    medians = {size: statistics.median(one) for size, one in taken.items()}
    rows = [
        (
            f"{size // 1024:,} KiB",
            f"{medians[size]:,.0f}",
            f"{min(one):,.0f} to {max(one):,.0f}",
            f"{medians[size] / medians[sizes[0]]:.2f}",
        )
        for size, one in taken.items()
    ]
    figures["largest_to_smallest_file"] = round(medians[sizes[-1]] / medians[sizes[0]], 2)
    title = f"By bytes a file, {REAL_FILES} files, SeaweedFS"
    columns = ("bytes a file", "commit, ms", "lowest to highest", "to the first")
    show(title, columns, rows, to_stderr=to_stderr)
    return as_markdown(title, columns, rows)


def main() -> None:
    """Measure, print, and record all but the quick edition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 10,000 files; in about a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        take_step(options.step[0], options.step[1], options.step[2] if len(options.step) > 2 else None)
        return
    figures: dict[str, float] = {}
    tables = [
        part(figures, quick=options.quick, to_stderr=options.json)
        for part in (numbers, recorded_sizes, real_sizes)
    ]
    about = machine()
    if options.json:
        print(json.dumps({"benchmark": "scale", "machine": about, **figures}))
    else:
        print(about)
    if not options.quick:
        write_section("scale", "\n\n".join([about, *tables]))


if __name__ == "__main__":
    main()
