"""How many uploads a second one process completes, compared with boto3's best and the server's limit.

    python benchmarks/commit_rate.py [--quick] [--json]

Four clients complete uploads on the same server, in turn, round after round, so that other load on the
machine slows all of them:

- ours: `S3Store.perform` over libcurl, as a commit calls it: signing, checking, retrying, one thread;
- boto3: a pool of threads around one client with this project's tuned configuration, each answer's ETag
  checked; several thread counts, of which the best counts;
- minimal: the cheapest client that completes uploads, see `cheapest.Minimal`: libcurl's multi interface, one
  signature and one body for each upload, a check for a 200 with an ETag, and nothing else. Ours is compared
  with it, because it shows what the same work costs at least;
- bare: `cheapest.Bare`, libcurl sending one request, signed beforehand, again and again, and checking nothing
  but the status. It cannot complete uploads, each of which needs a signature of its own, but shows what the
  server can answer at most.

A ratio is the median of the rounds' ratios, because the machine is faster in some rounds than in others.
The server for all but SeaweedFS is `null_server.py`, another process, which answers correctly after 0, 20 or
60 ms and stores nothing. Our bound of 3,000 requests a second is lifted, except in the row that says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cheapest import Bare, Minimal
from report import Measured, as_markdown, machine, measure, show, write_section

from airflow_s3commit import S3Config, S3Store
from airflow_s3commit.store.base import Complete
from airflow_s3commit.store.s3.config import new_client
from airflow_s3commit.testing.s3_server import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUCKET = "lake"
ETAG = "9b2cf535f27731c974343645a3985328"
COLUMNS = (
    "client",
    "completions/s",
    "lowest to highest",
    "client CPU, µs each",
    "to minimal",
    "to bare",
    "to boto3",
)

OUTAGE_COLUMNS = ("run", "seconds", "lowest to highest")

#: Connections of ours, and of the minimal and the bare client if there is latency.
CONNECTIONS = 512


@contextmanager
def null_server(milliseconds: int, *outage: float) -> Iterator[S3Config]:
    """Run the null server; ``outage``: after how many completions it is gone, and for how many seconds."""
    program = Path(__file__).with_name("null_server.py")
    with subprocess.Popen(
        [sys.executable, str(program), str(milliseconds), *map(str, outage)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            yield S3Config(f"http://127.0.0.1:{port}", "us-east-1", "an-access-key", "a-secret-key")
        finally:
            server.stdin.close()


def completions(count: int) -> list[Complete]:
    """Return completions of uploads that the server accepts as its own."""
    return [
        Complete(BUCKET, f"flights/dt=2013-01-01/part-{n:06d}.snappy.parquet", f"upload-{n}", [ETAG])
        for n in range(count)
    ]


def ours(store: S3Store, calls: list[Complete]) -> None:
    """Complete uploads as a commit does."""
    for call, outcome in store.perform((call, call) for call in calls):
        assert isinstance(outcome, str), (call, outcome)


def pool(client: Any, threads: int, calls: list[Complete]) -> None:
    """Complete uploads from a pool of threads."""

    def complete(call: Complete) -> str:
        parts = [{"PartNumber": 1, "ETag": f'"{call.etags[0]}"'}]
        answer = client.complete_multipart_upload(
            Bucket=BUCKET, Key=call.key, UploadId=call.upload_id, MultipartUpload={"Parts": parts}
        )
        etag: str = answer["ETag"]
        return etag

    with ThreadPoolExecutor(threads) as executor:
        assert all(executor.map(complete, calls))


def against_null(milliseconds: int, *, quick: bool) -> list[Measured]:
    """Measure all clients on the server that stores nothing; of each other kind keep the best."""
    # Without latency the clients' own processor time decides and varies most: many short rounds.
    rounds = (3 if quick else 5) if milliseconds else (5 if quick else 15)
    fast = (4_000 if quick else 12_000) if milliseconds else 8_000
    with null_server(milliseconds) as config:
        store = S3Store.connect(config, transport="curl", connections=CONNECTIONS, requests_per_second=None)
        bounded = S3Store.connect(config, transport="curl")
        assert store.transport == "curl"
        subjects: list[tuple[Measured, int, Callable[[int], object]]] = [
            (Measured("ours"), fast, lambda count: ours(store, completions(count))),
            (
                Measured("ours, 3,000/s bound"),
                min(fast, 9_000),
                lambda count: ours(bounded, completions(count)),
            ),
        ]
        for threads in (16, 64) if quick else (8, 16, 32, 64, 128):
            client = new_client(S3Config(**_with_connections(config, threads)))
            run = partial(_pool_of, client, threads)
            subjects.append((Measured(f"boto3, {threads} threads"), 400 if quick else 800, run))
        for connections in (CONNECTIONS,) if milliseconds else (16, 64, CONNECTIONS):
            least = partial(_of_calls, Minimal(config, connections))
            bare = Bare(config, completions(1)[0], connections)
            subjects.append((Measured(f"minimal, {connections} connections"), fast, least))
            subjects.append((Measured(f"bare, {connections} connections"), fast, bare))
        in_turn(subjects, rounds)
    return _best([subject for subject, _, _ in subjects])


def against_seaweed(*, quick: bool) -> list[Measured]:
    """Measure on SeaweedFS, where every upload is real, has 1 KiB and is completed once."""
    rounds, count = (3, 200) if quick else (5, 600)
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder), (BUCKET,)) as server:
        client: Any = new_client(server.config)
        names = itertools.count()

        def begin(_: object) -> Complete:
            key = f"part-{next(names):06d}"
            upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
            part = client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 1024)
            return Complete(BUCKET, key, upload, [part["ETag"].strip('"')])

        subjects: list[tuple[Measured, Callable[[list[Complete]], None]]] = [
            (
                Measured(f"ours, {connections} connections"),
                partial(ours, S3Store.connect(server.config, transport="curl", connections=connections)),
            )
            for connections in (8, 32, 256)
        ]
        for threads in (8, 32):
            run = partial(pool, new_client(S3Config(**_with_connections(server.config, threads))), threads)
            subjects.append((Measured(f"boto3, {threads} threads"), run))
        for number in range(rounds):
            for subject, complete in subjects[number % len(subjects) :] + subjects[: number % len(subjects)]:
                with ThreadPoolExecutor(8) as executor:
                    calls = list(executor.map(begin, range(count)))
                measure(subject, count, lambda _, complete=complete, calls=calls: complete(calls))  # type: ignore[misc]
    return [subject for subject, _ in subjects]


def through_an_outage(rounds: int) -> tuple[str, list[tuple[str, ...]], float]:
    """Complete 10,000 uploads at 20 ms, with and without a server that is gone for three seconds.

    Return a title, rows of a table, and the median of the seconds lost beyond the outage.
    """
    count, gone = 10_000, 3.0
    taken: dict[str, list[float]] = {"undisturbed": [], "with the outage": []}
    for _ in range(rounds):
        for name, outage in (("undisturbed", ()), ("with the outage", (count // 2, gone))):
            with null_server(20, *outage) as config:
                store = S3Store.connect(config, transport="curl")
                began = time.perf_counter()
                ours(store, completions(count))
                taken[name].append(time.perf_counter() - began)
    pairs = zip(taken["undisturbed"], taken["with the outage"], strict=True)
    lost = [disturbed - undisturbed - gone for undisturbed, disturbed in pairs]
    rows: list[tuple[str, ...]] = [
        (name, f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}")
        for name, seconds in {**taken, "lost beyond the three seconds": lost}.items()
    ]
    return (
        "10,000 completions through a three-second outage, 20 ms, null server",
        rows,
        statistics.median(lost),
    )


def in_turn(subjects: list[tuple[Measured, int, Callable[[int], object]]], rounds: int) -> None:
    """Let each subject have its turn in every round, in rotating order; warm them up before."""
    for _, count, run in subjects:
        run(max(count // 10, CONNECTIONS))
    for number in range(rounds):
        at = number % len(subjects)
        for subject, count, run in subjects[at:] + subjects[:at]:
            measure(subject, count, run)


def main() -> None:
    """Measure, print, and record all but the quick edition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller edition, in about two minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object with the figures")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    sections = []
    for milliseconds in (0, 20, 60):
        results = against_null(milliseconds, quick=options.quick)
        title = f"{milliseconds} ms added latency, null server"
        sections.append(report(title, results, figures, f"{milliseconds}ms", to_stderr=options.json))
    results = against_seaweed(quick=options.quick)
    sections.append(report("SeaweedFS", results, figures, "seaweedfs", to_stderr=options.json))
    title, rows, lost = through_an_outage(1 if options.quick else 3)
    figures["seconds_lost_beyond_a_3s_outage"] = round(lost, 2)
    show(title, OUTAGE_COLUMNS, rows, to_stderr=options.json)
    sections.append(as_markdown(title, OUTAGE_COLUMNS, rows))
    about = machine()
    if options.json:
        print(json.dumps({"benchmark": "commit_rate", "machine": about, **figures}))
    else:
        print(about)
    if not options.quick:
        write_section("commit_rate", "\n\n".join([about, *sections]))


def report(
    title: str, results: list[Measured], figures: dict[str, float], suffix: str, *, to_stderr: bool
) -> str:
    """Print one table, add its figures to ``figures``, and return it as Markdown."""
    best = {kind: _fastest(results, kind) for kind in ("ours", "minimal", "bare", "boto3")}
    rows = []
    for one in results:
        others = (best["minimal"], best["bare"], best["boto3"])
        shown = ["" if other is None else _as_text(one.beside(other)) for other in others]
        spread = f"{min(one.rates):,.0f} to {max(one.rates):,.0f}"
        rows.append((one.name, f"{one.rate:,.0f}", spread, f"{one.cost:,.0f}", *shown))
    show(title, COLUMNS, rows, to_stderr=to_stderr)
    our, their = best["ours"], best["boto3"]
    assert our is not None
    assert their is not None
    figures[f"completions_per_second_{suffix}"] = round(our.rate, 1)
    figures[f"cpu_us_per_completion_{suffix}"] = round(our.cost, 1)
    figures[f"boto3_completions_per_second_{suffix}"] = round(their.rate, 1)
    figures[f"ratio_to_boto3_{suffix}"] = round(statistics.median(our.beside(their)), 2)
    figures[f"cpu_ratio_to_boto3_{suffix}"] = round(our.cost / their.cost, 3)
    for kind in ("minimal", "bare"):
        other = best[kind]
        if other is not None:
            figures[f"{kind}_completions_per_second_{suffix}"] = round(other.rate, 1)
            figures[f"ratio_to_{kind}_{suffix}"] = round(statistics.median(our.beside(other)), 2)
            figures[f"cpu_ratio_to_{kind}_{suffix}"] = round(our.cost / other.cost, 3)
    return as_markdown(title, COLUMNS, rows)


def _as_text(ratios: list[float]) -> str:
    """Return the median of the ratios of the rounds, and their spread."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _best(results: list[Measured]) -> list[Measured]:
    """Return ours, and only the fastest each of the boto3 pools, the minimal and the bare clients."""
    kept = {id(_fastest(results, kind)) for kind in ("boto3", "minimal", "bare")}
    return [one for one in results if one.name.startswith("ours") or id(one) in kept]


def _fastest(results: list[Measured], kind: str) -> Measured | None:
    of_kind = [one for one in results if one.name.startswith(kind) and "bound" not in one.name]
    return max(of_kind, key=lambda one: one.rate, default=None)


def _pool_of(client: Any, threads: int, count: int) -> None:
    pool(client, threads, completions(count))


def _of_calls(client: Minimal, count: int) -> None:
    client(completions(count))


def _with_connections(config: S3Config, connections: int) -> dict[str, Any]:
    return {
        "endpoint_url": config.endpoint_url,
        "region": config.region,
        "access_key": config.access_key,
        "secret_key": config.secret_key,
        "max_connections": connections,
    }


if __name__ == "__main__":
    main()
