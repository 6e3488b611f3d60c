"""Records on S3 have the bytes of their golden files: one record each, followed by a newline.

From the first release on a golden file is never changed: a record that gets another field gets a new file,
and one that must mean something else a new version too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model import (
    destination,
    job,
    manifest,
    sealed_job,
    table,
)
from airflow_s3commit.protocol.model.codec import JobOwned, decode, encode, sha256
from airflow_s3commit.protocol.model.job import (
    AbortReport,
    JobOptions,
    JobRecord,
    JobReference,
    JobState,
    ObjectOptions,
    Position,
)
from airflow_s3commit.protocol.model.manifest import FileEntry, Manifest, SuccessData
from airflow_s3commit.protocol.model.pendingset import IOStatistics
from airflow_s3commit.protocol.model.sealed_job import (
    ColumnStatistics,
    CommittedTask,
    Counts,
    DriverSealRecord,
    DriverTask,
    SealedStage,
    SealedTask,
    SealRecord,
    SealReference,
    SparkField,
    SparkSchema,
    StageSealRecord,
    WrittenColumns,
)
from airflow_s3commit.protocol.model.table import Commit, Entry, Left, Retained, Source, UnownedObject
from tests.cases import each

GOLDEN = Path(__file__).parent / "golden"

JOB = "7f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a11"
OTHER = "8f3c1c0e-2b8e-4b0a-9d0c-0d6a2b9b7a11"
HERE = "s3://lake/flights/"
STAGING = f"{HERE}__magic_job-{JOB}/"
ETAG = "9b2cf535f27731c974343645a3985328"
COUNTS = Counts(
    files=2, bytes=300, rows=30, columns={"delay": ColumnStatistics(values=29, nulls=1, least=-1)}
)
PARTITIONS = {
    "dt=2013-01-01": Counts(files=1, bytes=100, rows=10),
    "dt=2013-01-02": Counts(files=1, bytes=200, rows=20),
}

PLACE: Any = {"job_id": JOB, "destination": HERE, "staging": STAGING}
SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

JOB_RECORD = JobRecord(
    **PLACE,
    options=JobOptions(committer="directory", conflict_mode="replace", staging="s3://private/staging/"),
    context={"dag_id": "nightly_flights_refresh", "run_id": "scheduled__2013-01-01"},
    created=1739800000123,
    base=Position(6, SHA256),
    nonce="n-1",
)
STAGE_SEAL = StageSealRecord(
    **PLACE,
    stage="spark",
    stage_attempt="1",
    tasks=[
        SealedTask(task="00000", attempt="4", counts=COUNTS, sha256=SHA256),
        SealedTask(task="00001", attempt="5", counts=Counts(files=0, bytes=0, rows=None), sha256=SHA256),
    ],
    counts=COUNTS,
    partitions=PARTITIONS,
    removes="partitions",
    replaced=["flight=1"],
    schemas=["AA=="],
    created=1739800000123,
    nonce="n-4",
)
SEAL = SealRecord(
    **PLACE,
    stages=[SealedStage(stage="spark", stage_attempt="1", tasks=2, counts=COUNTS, sha256=SHA256)],
    counts=COUNTS,
    partitions=PARTITIONS,
    removes="partitions",
    replaced=["flight=1"],
    schemas=["AA==", "AQ=="],
    created=1739800000123,
    nonce="n-5",
)
FILE = FileEntry(
    key=f"flights/dt=2013-01-01/part-00000-{JOB}.parquet",
    size=100,
    etag=f"{ETAG}-1",
    rows=10,
    partition="dt=2013-01-01",
    upload="u-1",
    statistics={
        "delay": ColumnStatistics(values=9, nulls=1, least=-1, greatest=1.5),
        "tail": ColumnStatistics(least="Ä"),
    },
)
LINE = msgspec.json.encode(FILE)
COMMIT = Commit(
    mode="replace",
    takes="partitions",
    unowned=[UnownedObject(key="flights/dt=2013-01-01/old.parquet", etag=ETAG, size=21)],
    partitions=PARTITIONS,
    counts=COUNTS,
    replaced=Counts(files=2, bytes=42, rows=None),
    files_sha256=sha256(LINE + b"\n"),
    within=[msgspec.Raw(LINE)],
    tasks=2,
    schemas=["AA==", "AQ=="],
    metrics={"complete_ms": 12},
)


def an_entry(kind: Any, **fields: Any) -> Entry:
    """Return an entry of the log."""
    facts: dict[str, Any] = {
        "destination": HERE,
        "number": 7,
        "kind": kind,
        "prev": SHA256,
        "since": 1739800123456,
        "nonce": "n-9",
    }
    return Entry(**{**facts, **fields})


def of_job(kind: Any, **fields: Any) -> Entry:
    """Return an entry that ends the job."""
    context = {"dag_id": "nightly_flights_refresh", "run_id": "scheduled__2013-01-01"}
    return an_entry(kind, job_id=JOB, staging=STAGING, context=context, **fields)


#: The record in every golden file, by the file's name.
RECORDS: dict[str, msgspec.Struct] = {
    "job-1": JOB_RECORD,
    "job-1-defaults": JobRecord(**PLACE, options=JobOptions(), created=0, nonce="n-1"),
    "job-1-pendingset-format": msgspec.structs.replace(
        JOB_RECORD, options=JobOptions(pendingset_format="hadoop-3.3")
    ),
    "job-1-object-options": msgspec.structs.replace(
        JOB_RECORD,
        options=JobOptions(
            object_options=ObjectOptions(
                storage_class="STANDARD_IA",
                sse="aws:kms",
                sse_kms_key_id="alias/lake",
                acl="bucket-owner-full-control",
                tags={"team": "data"},
                headers={"cache-control": "max-age=60"},
            )
        ),
    ),
    "job-1-retaining": msgspec.structs.replace(JOB_RECORD, options=JobOptions(retain="7d")),
    "job-1-marking": msgspec.structs.replace(JOB_RECORD, options=JobOptions(partition_success=True)),
    "job-1-adopted": msgspec.structs.replace(JOB_RECORD, adopted=True),
    "stage-seal-1": STAGE_SEAL,
    "seal-1": SEAL,
    "driver-seal-1": DriverSealRecord(
        job_id=JOB,
        stage="spark",
        stage_attempt="1",
        application="application_1739800000123_0001",
        application_attempt="1",
        spark="4.0.2",
        write=1,
        directory="dt=2013-01-01",
        dynamic=False,
        replaced=["dt=2013-01-01"],
        tasks=[
            DriverTask(task="0123456789ab-00000", attempt="4", sha256=SHA256, files=2, bytes=300, rows=30)
        ],
    ),
    "file-entry": FILE,
    "job-reference": JobReference(**PLACE, sha256="22" * 32),
    "committed-task": CommittedTask(
        stage="spark",
        stage_attempt="1",
        task="00000",
        attempt="4",
        location=f"{STAGING}stages/spark-1/tasks/00000_4.pendingset",
        files=2,
        bytes=300,
        rows=30,
        sha256=SHA256,
    ),
    "seal-reference": SealReference(
        location=f"{HERE}_s3commit/open/{JOB}/sealed.json",
        sha256=SHA256,
        tasks=2,
        counts=COUNTS,
        partitions=PARTITIONS,
    ),
    "abort-report": AbortReport(uploads=3, objects=1),
    "entry-1-commit": of_job("commit", commit=COMMIT),
    "entry-1-list": of_job(
        "commit", commit=msgspec.structs.replace(COMMIT, within=msgspec.UNSET, retain=604_800), marks=True
    ),
    "entry-1-adopted": of_job("commit", commit=msgspec.structs.replace(COMMIT, adopted=True)),
    "entry-1-rollback": of_job(
        "commit",
        commit=Commit(
            mode="rollback",
            partitions={},
            counts=Counts(),
            files_sha256=SHA256,
            within=[],
            restores={"dt=2013-01-01": [3, 5], "dt=2013-01-02": []},
            rolled_back_to=5,
        ),
    ),
    "entry-1-older-data": an_entry(
        "commit",
        number=1,
        prev="",
        commit=Commit(mode="older-data", partitions={}, counts=Counts(), files_sha256=SHA256, within=[]),
    ),
    "entry-1-abandon": of_job("abandon", why="checks failed"),
    "entry-1-release": an_entry("release", frees=[4, 5]),
    "destination-1": destination.RegisteredDestination(
        destination=HERE, aws_conn_id="lake", staging="s3://private/staging/"
    ),
}

VERSIONED = [name for name in RECORDS if name.partition("-1")[1]]
#: What is only written inside other records.
PARTS = {
    ColumnStatistics,
    Commit,
    Counts,
    DriverTask,
    JobOptions,
    ObjectOptions,
    Position,
    SealedStage,
    SealedTask,
    SparkField,
    SparkSchema,
    UnownedObject,
    WrittenColumns,
}

#: What is never written: it is made of an entry.
VALUES = {JobState, Left, Manifest, Retained, Source}

UNDER_CONDITIONS = (JobRecord, StageSealRecord, SealRecord, Entry)


def golden(name: str) -> bytes:
    """Return a golden file without the newline that it ends with."""
    return (GOLDEN / f"{name}.json").read_bytes().removesuffix(b"\n")


#: Hadoop's format of ``_SUCCESS``, which `test_success` fixes.
OF_HADOOP = {IOStatistics, SuccessData}


def changed(name: str, /, **fields: Any) -> bytes:
    """Return a golden file with some of its fields changed."""
    return json.dumps({**json.loads(golden(name)), **fields}).encode()


def without(name: str, field: str) -> bytes:
    """Return a golden file with one of its fields left out."""
    return json.dumps({k: v for k, v in json.loads(golden(name)).items() if k != field}).encode()


def test_every_record_has_a_golden_file() -> None:
    """A new kind of record needs a golden file that fixes its form."""
    kinds = {type(record) for record in RECORDS.values()}
    modules = (destination, job, manifest, sealed_job, table)
    written = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    written = {kind for kind in written if issubclass(kind, msgspec.Struct) and not kind.__subclasses__()}
    assert written - PARTS - OF_HADOOP - VALUES == kinds


@each("name", RECORDS)
def test_a_golden_file_is_read_back_equal(name: str) -> None:
    """This version understands every golden file."""
    record = RECORDS[name]
    assert decode(type(record), golden(name), name) == record


@each("name", RECORDS)
def test_a_record_is_written_byte_for_byte(name: str) -> None:
    """A record is written as its golden file has it."""
    assert encode(RECORDS[name]) == golden(name)


@each("name", RECORDS)
def test_fields_of_a_later_version_are_ignored(name: str) -> None:
    """Unknown fields, in the record or in a part of it, are ignored."""

    def more(value: Any) -> Any:
        if isinstance(value, list):
            return [more(item) for item in value]
        if isinstance(value, dict) and "version" in value:
            return {**{key: more(item) for key, item in value.items()}, "later": {"a": [1, None]}}
        return value

    record = {**more(json.loads(golden(name))), "later": [{"b": 1}]}
    # Compact, as before: a list of files within keeps its bytes.
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    assert decode(type(RECORDS[name]), body, name) == RECORDS[name]


def test_fields_of_a_later_version_are_ignored_in_parts() -> None:
    """The same holds for options and sealed tasks."""
    options = {**json.loads(golden("job-1"))["options"], "colour": "blue"}
    assert decode(JobRecord, changed("job-1", options=options), "x") == RECORDS["job-1"]
    tasks = [{**task, "colour": "blue"} for task in json.loads(golden("stage-seal-1"))["tasks"]]
    assert decode(StageSealRecord, changed("stage-seal-1", tasks=tasks), "x") == RECORDS["stage-seal-1"]


@each("name", VERSIONED)
@each("version", [0, 2, 99, -1, "1", None, 1.5])
def test_another_version_is_refused(name: str, version: Any) -> None:
    """A record of a version that this one does not know is invalid, and the message names it."""
    with pytest.raises(InvalidRecord, match="s3://lake/there is not a valid"):
        decode(type(RECORDS[name]), changed(name, version=version), "s3://lake/there")


@each("name", RECORDS)
def test_a_record_cut_short_is_refused(name: str) -> None:
    """However much of its end is missing, the rest is not a record."""
    body = golden(name)
    for length in range(len(body)):
        with pytest.raises(InvalidRecord):
            decode(type(RECORDS[name]), body[:length], name)


@each("name", RECORDS)
@each(
    "body",
    [
        b"", b" ", b"null", b"[]", b"{}x", b'"text"', b"1", b"\xff\xfe", b"\x00" * 64, b"[" * 100_000,
        b'{"a":' * 100_000, b"PAR1", b"<Error><Code>SlowDown</Code></Error>",
    ],
)  # fmt: skip
def test_other_content_is_not_a_record(name: str, body: bytes) -> None:
    """Anything else in a record's place is an invalid record, and no other error."""
    with pytest.raises(InvalidRecord, match=r"s3://lake/there"):
        decode(type(RECORDS[name]), body, "s3://lake/there")


@pytest.mark.parametrize("kind", UNDER_CONDITIONS)
def test_records_under_conditions_have_a_nonce(kind: type[msgspec.Struct]) -> None:
    """A writer that finds a record in its place can tell whether it is its own."""
    name = next(name for name, record in RECORDS.items() if type(record) is kind)
    for body in (without(name, "nonce"), changed(name, nonce="")):
        with pytest.raises(InvalidRecord):
            decode(kind, body, name)


@each("name", [name for name, record in RECORDS.items() if isinstance(record, JobOwned)])
@each("field", ["job_id", "destination", "staging"])
def test_a_record_names_its_job_and_place(name: str, field: str) -> None:
    """A record that does not say for which job and place it was written is refused."""
    for body in (without(name, field), changed(name, **{field: None})):
        with pytest.raises(InvalidRecord):
            decode(type(RECORDS[name]), body, name)


@each(
    ("name", "field"),
    [("stage-seal-1", "tasks"), ("seal-1", "stages"), ("driver-seal-1", "tasks")],
)
def test_a_seal_names_what_counts_by_its_digest(name: str, field: str) -> None:
    """A seal without the SHA-256 of a pendingset or of a stage's seal is refused."""
    parts = [{**part, "sha256": None} for part in json.loads(golden(name))[field]]
    with pytest.raises(InvalidRecord):
        decode(type(RECORDS[name]), changed(name, **{field: parts}), name)


@each(
    ("name", "fields"),
    [
        ("job-1", {"job_id": ""}),
        ("job-1", {"options": {"committer": "file"}}),
        ("job-1", {"options": {"conflict_mode": "REPLACE"}}),
        ("job-1", {"options": {"partition_success": "yes"}}),
        ("job-1", {"created": -1}),
        ("job-1", {"context": {"n": 1}}),
        ("job-1", {"base": {"number": -1}}),
        ("stage-seal-1", {"tasks": [{"task": "1"}]}),
        ("stage-seal-1", {"partitions": {"dt=1": {"files": -1}}}),
        ("seal-1", {"stages": None}),
        ("seal-1", {"counts": {"files": 1.5}}),
        ("entry-1-commit", {"number": 2**63}),
        ("entry-1-release", {"frees": [-1]}),
        ("entry-1-commit", {"since": -1}),
        ("committed-task", {"sha256": ""}),
        ("abort-report", {"uploads": -1}),
    ],
)  # fmt: skip
def test_a_field_out_of_its_range_is_refused_both_ways(name: str, fields: dict[str, Any]) -> None:
    """A meaningless value is refused when it is read, and when it is written."""
    kind = type(RECORDS[name])
    with pytest.raises(InvalidRecord):
        decode(kind, changed(name, **fields), name)
    with pytest.raises(InvalidRecord, match=f"{kind.__name__} cannot be saved"):
        encode(msgspec.structs.replace(RECORDS[name], **fields))


@each(
    ("name", "fields"),
    [
        ("entry-1-commit", {"kind": "release"}),
        ("entry-1-commit", {"kind": "abandon"}),
        ("entry-1-commit", {"kind": "begin"}),
        ("entry-1-commit", {"commit": None}),
        ("entry-1-commit", {"frees": [4]}),
        ("entry-1-commit", {"prev": ""}),
        ("entry-1-older-data", {"prev": SHA256}),
        ("entry-1-abandon", {"kind": "commit"}),
        ("entry-1-abandon", {"job_id": None}),
        ("entry-1-release", {"frees": []}),
        ("entry-1-release", {"kind": "abandon"}),
    ],
)
def test_an_entry_of_the_log_has_the_fields_of_its_kind(name: str, fields: dict[str, Any]) -> None:
    """A commit says what it does, an abandoned job who it is, a release what it frees, and nothing else."""
    with pytest.raises(InvalidRecord, match="s3://lake/there is not a valid Entry"):
        decode(Entry, changed(name, **fields), "s3://lake/there")


def test_a_value_that_json_lacks_is_refused_on_write() -> None:
    """A value that JSON cannot express is an invalid record, whatever the encoder calls it."""
    entry: Any = FileEntry(key="k", size=1, etag="", partition="")
    entry = msgspec.structs.replace(entry, statistics={"a": object()})
    with pytest.raises(InvalidRecord, match="FileEntry cannot be saved"):
        encode(entry)


def test_counts_add_up() -> None:
    """Files and bytes add up; rows do where both are known."""
    known, unknown = Counts(files=1, bytes=2, rows=3), Counts(files=1, bytes=2, rows=None)
    assert known.plus(known) == Counts(files=2, bytes=4, rows=6)
    assert known.plus(unknown) == unknown.plus(known) == Counts(files=2, bytes=4, rows=None)
    assert Counts.total([]) == Counts(files=0, bytes=0, rows=0)
    assert Counts.total([known] * 3) == Counts(files=3, bytes=6, rows=9)


@pytest.mark.parametrize("kind", [JobReference, CommittedTask])
def test_a_reference_survives_plain_values(kind: Any) -> None:
    """A reference survives XCom as plain values; other entries are ignored."""
    record: Any = next(record for record in RECORDS.values() if type(record) is kind)
    plain = json.loads(json.dumps(record.to_dict()))
    assert kind.from_dict({**plain, "more": 1}) == record
    for field in plain:
        # Not all writers count rows, and a person who names a job does not know its record.
        if field not in ("rows", "sha256") or (kind, field) == (CommittedTask, "sha256"):
            with pytest.raises(InvalidRecord):
                kind.from_dict({name: value for name, value in plain.items() if name != field})
            with pytest.raises(InvalidRecord):
                kind.from_dict({**plain, field: None})


@pytest.mark.parametrize("name", ["seal-reference", "abort-report"])
def test_totals_are_small_enough_for_xcom(name: str) -> None:
    """A task returns flat totals, without lists or a mapping of partitions."""
    record: Any = RECORDS[name]
    assert not any(isinstance(value, list | dict) for value in record.to_dict().values())
    json.dumps(record.to_dict())


def test_threads_that_begin_together_read_alike() -> None:
    """Several threads may read a process's first records at once, as the page does."""
    program = """
import sys, threading
from airflow_s3commit.protocol.model.table import Entry
from airflow_s3commit.protocol.model.sealed_job import SealRecord, StageSealRecord
from airflow_s3commit.protocol.model.codec import decode
sys.setswitchinterval(1e-6)
kinds, start, done = (SealRecord, StageSealRecord, Entry), threading.Barrier(24), []
bodies = {kind: open(path, "rb").read() for kind, path in zip(kinds, sys.argv[1:])}
def read(kind):
    start.wait()
    done.append(decode(kind, bodies[kind], "x"))
threads = [threading.Thread(target=read, args=(kinds[n % 3],)) for n in range(24)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(done) == 24
"""
    names = ("seal-1", "stage-seal-1", "entry-1-commit")
    paths = [str(GOLDEN / f"{name}.json") for name in names]
    for _ in range(5):
        subprocess.run([sys.executable, "-c", program, *paths], check=True)
