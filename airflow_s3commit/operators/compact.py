"""The operator that writes small files of a table anew as fewer, larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_s3commit._format import text_table
from airflow_s3commit.operators.base import S3CommitBaseOperator, refusals_are_final
from airflow_s3commit.operators.setup import job_options
from airflow_s3commit.operators.tries import job_context
from airflow_s3commit.protocol.model.destination import as_uri
from airflow_s3commit.templates import check_value, known_of, mapping, place

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_s3commit.protocol.model.destination import Destination


class S3CommitCompactOperator(S3CommitBaseOperator):
    """Writes partitions with many small files anew, by one commit that changes no row.

    For tables of streams and hourly appends. The task reads and writes with pyarrow in its own process; a
    partition is compacted if that at least halves its files. It may be retried and cleared: what is compact
    is left alone. It fails, and changes nothing, where another job has uploads or commits meanwhile. Returns
    the generation, which is None if no partition gained anything, and the numbers of partitions, files and
    rows.

    :param destination: The table's directory: ``s3://bucket/prefix/`` or a `Destination`. (templated)
    :param partitions: Directories below it, such as ``dt={{ ds }}``; by default every one. (templated)
    :param target_bytes: Size after which a file ends; by default 128 MiB. (templated)
    :param options: Options of the job, as in the task group: ``retain``, ``object_options``, … (templated)
    """

    template_fields: Sequence[str] = (
        *S3CommitBaseOperator.template_fields,
        "destination",
        "partitions",
        "target_bytes",
        "options",
    )
    ui_color = "#e9efe0"

    def __init__(
        self,
        *,
        destination: str | Destination,
        partitions: Sequence[str] = (),
        target_bytes: int | str = 128 * 1024 * 1024,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.destination = as_uri(destination)
        self.partitions = partitions
        self.target_bytes = target_bytes
        self.options = options or {}
        self.check(destination=place, target_bytes=int, options=mapping)
        check_value(f"Task {self.task_id}", "options", job_options, known_of(self.options))

    def execute(self, context: Context) -> dict[str, Any]:
        """Compact the partitions, and return what was written.

        :param context: The task's context.
        :raises AirflowFailException: The table cannot be compacted, or is in use.
        """
        self.require_text("destination")
        from airflow_s3commit.compaction import compact  # noqa: PLC0415 - keeps DAG parsing light

        with refusals_are_final():
            report = compact(
                self.hook.store,
                self.destination,
                partitions=[self.partitions] if isinstance(self.partitions, str) else list(self.partitions),
                target_bytes=int(self.target_bytes),
                job_options=job_options(self.options),
                context=job_context(context),
            )
        if report.partitions:
            self.log.info("Compacted\n%s", text_table(report.partitions[0].columns, report.partitions))
        return {
            "destination": report.destination,
            "generation": report.generation,
            "partitions": len(report.partitions),
            "files": report.files,
            "rows": report.rows,
        }
