"""The metrics that tasks send to Airflow, which are the ones that the documentation lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk._shared.observability.metrics import stats as shared
from airflow.sdk.exceptions import AirflowFailException
from msgspec.structs import replace

from airflow_s3commit import Destination, Job, JobOptions, RetryPolicy, latest_manifest, metrics
from airflow_s3commit.exceptions import OutcomeUnknown, Unavailable
from airflow_s3commit.hooks import S3CommitHook
from airflow_s3commit.metrics import count_retry, count_sweep, counted, gauge_pending
from airflow_s3commit.notifications import AbortUploadsNotifier
from airflow_s3commit.operators import (
    S3CommitAbortOperator,
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
    S3CommitSetupOperator,
    S3CommitSparkSubmitOperator,
    S3CommitSweepOperator,
)
from airflow_s3commit.protocol.inspect.jobs import JobSummary
from airflow_s3commit.protocol.model.sealed_job import Counts
from airflow_s3commit.protocol.sweep import SweepReport
from airflow_s3commit.protocol.sweep_plan import DeadJob, LeftAlone, SweepPlan
from airflow_s3commit.sensors import S3SuccessManifestSensor
from airflow_s3commit.triggers import S3SuccessManifestEventTrigger, S3SuccessManifestTrigger
from tests.airflow.runs import FLIGHTS, commit, new_context, set_up, write_stage

if TYPE_CHECKING:
    from airflow_s3commit import MemoryStore

pytestmark = pytest.mark.airflow

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Ledger:
    """What Airflow passes every metric to: a backend that records them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.gauges: dict[str, float] = {}
        self.times: dict[str, list[float]] = {}
        self.tags: list[dict[str, str]] = []
        self.broken = False

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str] | None = None) -> None:
        if self.broken:
            raise OSError("no route to the metrics")
        self.counts[stat] = self.counts.get(stat, 0) + count
        self.tags.append(tags or {})

    def gauge(
        self,
        stat: str,
        value: float,
        rate: float = 1,
        delta: bool = False,
        *,
        tags: dict[str, str] | None = None,
    ) -> None:
        if self.broken:
            raise OSError("no route to the metrics")
        self.gauges[stat] = value
        self.tags.append(tags or {})

    def timing(self, stat: str, dt: Any, *, tags: dict[str, str] | None = None) -> None:
        if self.broken:
            raise OSError("no route to the metrics")
        self.times.setdefault(stat, []).append(float(dt))
        self.tags.append(tags or {})


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Return the backend of Airflow's metrics for the length of a test."""
    made, before = Ledger(), shared._factory
    shared.initialize(factory=lambda: made, export_legacy_names=False)  # type: ignore[arg-type, return-value]
    yield made
    shared._factory, shared._backend = before, None


def _sealed(store: MemoryStore, context: dict[str, Any]) -> dict[str, str]:
    reference = set_up(store)
    write_stage(
        store,
        reference,
        files={"dt=1/a.parquet": b"rows", "dt=1/b.parquet": b"rows!", "dt=2/c.parquet": b"r"},
    )
    S3CommitResolveConflictsOperator(task_id="resolve", job=reference).execute(context)
    return reference


def test_a_commit_is_counted(store: MemoryStore, context: dict[str, Any], ledger: Ledger) -> None:
    """A metric says how much it made visible, how long it took, and where, but not which job it was."""
    S3CommitJobOperator(task_id="commit", job=_sealed(store, context)).execute(context)
    told = {name: count for name, count in ledger.counts.items() if name.startswith("s3commit.")}
    requests = told.pop("s3commit.commit.requests")
    assert requests >= 3
    assert told == {
        "s3commit.commits": 1,
        "s3commit.commit.files": 3,
        "s3commit.commit.bytes": 10,
        "s3commit.commit.rows": 3,
        "s3commit.commit.partitions": 2,
    }
    assert set(ledger.times) == {"s3commit.commit.duration", "s3commit.commit.complete_duration"}
    assert all(tags == {"bucket": "lake", "destination": "flights"} for tags in ledger.tags)


def test_a_failed_try_is_counted(store: MemoryStore, context: dict[str, Any], ledger: Ledger) -> None:
    """A failed try is not counted as a commit."""
    with pytest.raises(AirflowFailException):
        S3CommitJobOperator(task_id="commit", job=set_up(store)).execute(context)
    assert ledger.counts == {"s3commit.commit.failures": 1}
    assert ledger.times == {}


def test_an_abort_is_counted(store: MemoryStore, context: dict[str, Any], ledger: Ledger) -> None:
    """An abort counts with its uploads; one that finds the job committed does not count."""
    reference = _sealed(store, context)
    with pytest.raises(AirflowFailException):
        S3CommitAbortOperator(task_id="abort", job=reference, kill_window=0).execute(context)
    assert ledger.counts["s3commit.aborts"] == 1
    assert ledger.counts["s3commit.abort.uploads"] >= 3
    before = dict(ledger.counts)
    committed = _sealed(store, context)
    S3CommitJobOperator(task_id="commit", job=committed).execute(context)
    S3CommitAbortOperator(task_id="abort", job=committed, kill_window=0).execute(context)
    assert ledger.counts["s3commit.aborts"] == before["s3commit.aborts"]
    for number in (1, 2):
        setup = S3CommitSetupOperator(
            task_id="setup", destination=FLIGHTS, conflict_mode="append", kill_window=0
        )
        setup.execute(new_context(number))
    assert ledger.counts["s3commit.aborts"] == before["s3commit.aborts"] + 1


def test_a_sweep_is_counted_unless_it_was_dry(
    store: MemoryStore, context: dict[str, Any], ledger: Ledger
) -> None:
    """A dry run changes nothing, and counts nothing; either reports what is pending, dead or alive."""
    _sealed(store, context)
    how = {"task_id": "sweep", "destination": FLIGHTS, "older_than": 0}
    S3CommitSweepOperator(**{**how, "older_than": "1d"}).execute(context)
    assert ledger.gauges["s3commit.pending.jobs"] == 1
    ledger.gauges.clear()
    S3CommitSweepOperator(**how).execute(context)
    assert ledger.counts == {}
    assert (ledger.gauges["s3commit.pending.jobs"], ledger.gauges["s3commit.pending.bytes"]) == (1, 10)
    assert ledger.gauges["s3commit.pending.idle"] >= 0
    S3CommitSweepOperator(**how, apply=True).execute(context)
    assert ledger.gauges == {f"s3commit.pending.{name}": 0 for name in ("jobs", "bytes", "idle")}
    assert ledger.counts["s3commit.sweeps"] == 1
    assert ledger.counts["s3commit.sweep.jobs"] == 1
    assert ledger.counts["s3commit.sweep.uploads"] == 3


def test_replaced_files_are_counted(store: MemoryStore, ledger: Ledger) -> None:
    """A commit that replaces says how many files it took."""
    for _ in range(2):
        job = Job.setup(store, FLIGHTS, options=JobOptions(conflict_mode="replace"))
        write_stage(store, job.reference.to_dict(), files={"dt=1/a": b"aa", "dt=1/b": b"bb"})
        job.seal()
        counted(FLIGHTS, job.commit)
    assert ledger.counts["s3commit.commit.replaced_files"] == 2


def test_a_duration_is_in_milliseconds(
    store: MemoryStore, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a try that was killed is none, and counts as a failure."""
    commit(store)
    manifest = latest_manifest(store, Destination.parse(FLIGHTS))
    moments = iter([1.0, 3.5, 5.0])
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    counted(FLIGHTS, lambda: replace(manifest, counts=Counts(files=1, bytes=4, rows=7)))
    assert ledger.times["s3commit.commit.duration"] == [2500.0]
    assert ledger.counts["s3commit.commit.rows"] == 7

    def killed() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counted(FLIGHTS, killed)
    assert ledger.counts["s3commit.commit.failures"] == 1
    assert len(ledger.times["s3commit.commit.duration"]) == 1


def test_orphans_and_failures_of_a_sweep_are_counted(ledger: Ledger) -> None:
    """Uploads of dead jobs and of no job are one count; what could not be removed is another."""
    dead = [
        DeadJob(
            job_id=str(number), staging=FLIGHTS, action="abort", state="open", silent=9.0, uploads=number,
            reason="nobody works on it",
        )
        for number in (2, 3)
    ]  # fmt: skip
    left = [LeftAlone(what="an upload", reason="503")]
    plan = SweepPlan(destination=FLIGHTS, older_than=0)
    count_sweep(SweepReport(plan=plan, dry_run=False, jobs=dead, uploads=4, failures=left))
    counts = {"s3commit.sweeps": 1, "s3commit.sweep.jobs": 2, "s3commit.sweep.uploads": 9}
    assert ledger.counts == {**counts, "s3commit.sweep.failures": 1}


def test_what_is_pending_longest_is_reported(ledger: Ledger) -> None:
    """Of several jobs the idle time is the longest, and their bytes are added."""
    jobs = [
        JobSummary(job_id=str(silent), destination=FLIGHTS, staging=None, state="open", silent=silent)
        for silent in (5.0, 60.0, None)
    ]
    gauge_pending(FLIGHTS, [replace(job, output=Counts(files=1, bytes=7)) for job in jobs])
    gauges = {"s3commit.pending.jobs": 3, "s3commit.pending.bytes": 21, "s3commit.pending.idle": 60.0}
    assert ledger.gauges == gauges
    gauge_pending("s3://lake", [])
    assert ledger.tags[-1] == {"bucket": "lake", "destination": "/"}


def test_retries_and_throttles_are_counted_as_they_happen(ledger: Ledger) -> None:
    """A lost response is a retry; a request that was rejected temporarily is a throttle too."""

    class Clock:
        def time(self) -> float:
            return 0.0

        def monotonic(self) -> float:
            return 0.0

        def sleep(self, seconds: float) -> None:
            pass

    errors = iter([Unavailable("slow down"), OutcomeUnknown("lost"), Unavailable("slow down")])

    def attempt() -> str:
        error = next(errors, None)
        if error is not None:
            raise error
        return "done"

    assert RetryPolicy(clock=Clock(), on_retry=count_retry).run(attempt) == "done"
    assert ledger.counts == {"s3commit.store.retries": 3, "s3commit.store.throttles": 2}


def test_everything_that_asks_a_store_counts_its_retries() -> None:
    """Operators, the Spark operator, the sensor and the triggers use hooks that report retries."""
    hooks = [
        S3CommitJobOperator(task_id="commit", job={}).hook,
        S3CommitSparkSubmitOperator(task_id="stage", job={}).hook,
        S3SuccessManifestSensor(task_id="wait", destination=FLIGHTS, run_id="r").hook,
        S3SuccessManifestTrigger(destination=FLIGHTS, wanted={}).hook(),
        S3SuccessManifestEventTrigger(destination=FLIGHTS).hook(),
    ]
    assert [hook.on_retry for hook in hooks] == [count_retry] * len(hooks)


def test_the_notifier_counts_its_retries(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that a callback creates for itself counts them too."""
    made, job = [], S3CommitHook.job

    def seen(hook: S3CommitHook, reference: Any) -> Any:
        made.append(hook)
        return job(hook, reference)

    monkeypatch.setattr(S3CommitHook, "job", seen)
    AbortUploadsNotifier(job=set_up(store), kill_window=0).notify({"run_id": "run"})
    assert [hook.on_retry for hook in made] == [count_retry]


def test_a_metric_that_cannot_be_sent_fails_no_task(
    store: MemoryStore, context: dict[str, Any], ledger: Ledger
) -> None:
    """The commit is worth more than its count."""
    ledger.broken = True
    summary = S3CommitJobOperator(task_id="commit", job=_sealed(store, context)).execute(context)
    assert summary["files"] == 3


def test_the_documented_table_is_the_code() -> None:
    """The table has every metric that the code sends, by the kind by which it sends it, and no other."""
    documented = re.findall(r"^\| `(s3commit\.[\w.]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    sent = re.findall(r'(?:_send\("(\w+)", )?"(s3commit\.[\w.]+)"', Path(metrics.__file__).read_text())
    kinds = {"timing": "timer", "gauge": "gauge", "": "counter"}
    assert sorted(documented) == sorted((name, kinds[sender]) for sender, name in sent)
