"""What a task of our writer costs besides its rows: before the first one, and after the last."""

from __future__ import annotations

import pickle
import statistics
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from report import as_markdown, show

from airflow_s3commit import Job, JobOptions, S3Store
from airflow_s3commit.spark.options import parse_options
from airflow_s3commit.spark.task import plan_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_s3commit.testing.s3_server import S3Server

COLUMNS = ("worker, committer", "before s", "after s", "sum s", "worst s", "store s", "CPU s", "tasks")
COMMITTERS = ("magic", "partitioned")

#: Runs of two tasks, the first of them in freshly started workers.
RUNS = 11


def startup(spark: SparkSession, server: S3Server, figures: dict[str, float], *, to_stderr: bool) -> str:
    """Measure tasks of one row, print a table, add to ``figures``, and return the table as Markdown.

    To be called before anything else has used this package in the session's workers.
    """
    taken: list[dict[str, Any]] = []
    for run in range(RUNS):
        for committer in COMMITTERS:
            job = Job.setup(
                S3Store.connect(server.config),
                f"s3://lake/startup-{run}-{committer}",
                options=JobOptions(committer=committer, conflict_mode="append"),
            )
            options = parse_options({"partitionBy": "dt", "committer": committer}, overwrite=False)
            rows = spark.range(0, 2, 1, 2).selectExpr("id", "cast(id as string) dt")
            sent = pickle.dumps((plan_table(rows.schema, options), options, job.reference))
            settings = (server.endpoint_url, server.config.region, server.config.path_style)
            task = _task(sent, settings)
            columns = "committer string, cold boolean, before double, after double, store double, cpu double"
            taken += [row.asDict() for row in rows.mapInArrow(task, columns).collect()]
            job.abort()
    lines = []
    for cold in (True, False):
        for committer in COMMITTERS:
            found = [one for one in taken if (one["cold"], one["committer"]) == (cold, committer)]
            if found:
                lines.append(_line(cold, committer, found, figures))
    title = "Start and end of a task of one row, without the store's time"
    show(title, COLUMNS, lines, to_stderr=to_stderr)
    return as_markdown(title, COLUMNS, lines)


def _line(
    cold: bool, committer: str, found: list[dict[str, Any]], figures: dict[str, float]
) -> tuple[str, ...]:
    sums = [one["before"] + one["after"] for one in found]
    medians = [statistics.median(one[name] for one in found) for name in ("before", "after", "store", "cpu")]
    before, after, store, cpu = medians
    name = f"{'new' if cold else 'warm'}_{committer}"
    figures[f"startup_seconds_{name}"] = round(statistics.median(sums), 4)
    figures[f"startup_worst_seconds_{name}"] = round(max(sums), 4)
    shown = (before, after, statistics.median(sums), max(sums), store, cpu)
    return (name.replace("_", ", "), *(f"{value:.3f}" for value in shown), str(len(found)))


def _task(
    sent: bytes, settings: tuple[str | None, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a worker runs; it is sent as a whole, with its imports inside."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys  # noqa: PLC0415
        from time import perf_counter, process_time  # noqa: PLC0415

        began, cpu = perf_counter(), process_time()
        cold = "airflow_s3commit.spark.task" not in sys.modules

        import pickle  # noqa: PLC0415

        import pyarrow as pa  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        from airflow_s3commit import Job  # noqa: PLC0415
        from airflow_s3commit.spark.session import store_of_process  # noqa: PLC0415
        from airflow_s3commit.spark.task import write_task  # noqa: PLC0415
        from airflow_s3commit.store.credentials import StoreAddress  # noqa: PLC0415
        from airflow_s3commit.store.forwarding import ForwardingStore  # noqa: PLC0415

        class TimedStore(ForwardingStore):
            """Passes calls on and adds up their duration; each is waited for."""

            def __init__(self, inner: Any) -> None:
                super().__init__(inner)
                self.seconds = 0.0

            def forward(self, verb: str, bucket: str, key: str, make: Any) -> Any:
                at = perf_counter()
                try:
                    return super().forward(verb, bucket, key, make)
                finally:
                    self.seconds += perf_counter() - at

        store = TimedStore(store_of_process(StoreAddress(*settings[:2], path_style=settings[2])))
        plan, options, reference = pickle.loads(sent)
        marks = []

        def watched() -> Iterator[pa.RecordBatch]:
            marks.append(perf_counter() - store.seconds)
            yield from batches
            marks.append(perf_counter() - store.seconds)

        context = TaskContext.get()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        ids = ("spark", "1", partition, str(attempt))
        write_task(Job.at(store, reference), watched(), plan, ids, options)
        ended = perf_counter() - store.seconds
        told = {
            "committer": options.committer,
            "cold": cold,
            "before": marks[0] - began,
            "after": ended - marks[1],
            "store": store.seconds,
            "cpu": process_time() - cpu,
        }
        yield pa.RecordBatch.from_pydict({name: [value] for name, value in told.items()})

    return run
