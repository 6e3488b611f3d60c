"""Plan the sweeps of a registry's destinations, each by its own records: the registry says where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.metadata.registry import Registered, has_records, is_gone
from airflow_s3commit.protocol.model.destination import RegisteredDestination
from airflow_s3commit.protocol.sweep.plan import SweepPlan
from airflow_s3commit.protocol.sweep.planner import plan_sweep
from airflow_s3commit.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class RegisteredSweep:
    """What a sweep finds at one destination of a registry. Without plan and error it is left alone.

    Attributes:
        entry: The destination's entry, or one of several with other stagings.
        plan: What to remove there, and the store; None without records of jobs.
        gone: Whether nothing is left of the destination, so that its entry may be removed.
        error: Why the destination could not be read; None if it was.

    """

    entry: Registered
    plan: tuple[ObjectStore, SweepPlan] | None = None
    gone: bool = False
    error: S3CommitError | None = None

    @property
    def uri(self) -> str:
        """URI of the destination."""
        return self.entry.record.destination

    @property
    def is_left(self) -> bool:
        """Whether it is left alone, because it has no records of jobs."""
        return self.plan is None and self.error is None and not self.gone


def plan_registered(
    entries: Iterable[Registered],
    open_store: Callable[[RegisteredDestination], ObjectStore],
    *,
    older_than: float,
) -> Iterator[RegisteredSweep]:
    """Yield what a sweep would remove at each destination, without removing it.

    A destination that cannot be read does not keep back the others. One without records of jobs is not swept:
    a sweep there would abort the uploads of other programs. One with several entries, which name different
    stagings, is swept once, with all of these.

    Args:
        entries: Entries of a registry.
        open_store: Opens the store of a destination; its `S3CommitError` is the destination's error.
        older_than: Seconds without activity after which a job is dead, and minimum age of an entry to remove.

    """
    places: dict[tuple[str, str | None], list[Registered]] = {}
    for entry in entries:
        places.setdefault((entry.record.destination, entry.record.aws_conn_id), []).append(entry)
    for first, *others in places.values():
        found = [first, *others]
        record = first.record
        try:
            store = open_store(record)
            if has_records(store, record):
                roots = [one.record.staging_root for one in found]
                plan = plan_sweep(
                    store,
                    record.place,
                    older_than=older_than,
                    staging_roots=[root for root in roots if root is not None],
                )
                yield RegisteredSweep(first, plan=(store, plan))
                continue
            for entry in found:
                is_old = entry.age >= older_than
                yield RegisteredSweep(entry, gone=is_old and is_gone(store, entry.record))
        except S3CommitError as error:
            yield RegisteredSweep(first, error=error)
