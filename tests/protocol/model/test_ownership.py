"""What belongs to a job, what it may destroy, and that without the key no one makes a committer act."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import msgspec
import pytest

from airflow_s3commit.exceptions import (
    ForeignRecord,
    InvalidOption,
    InvalidRecord,
    SignatureRefused,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.manifests import read_manifest
from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import AbortedRecord, JobOptions, JobRecord
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.manifest import ManifestRecord
from airflow_s3commit.protocol.model.ownership import (
    HmacSigner,
    Proof,
    Thing,
    check_place,
    is_ours,
    sign,
    why_not,
)
from airflow_s3commit.protocol.model.pendingset import PendingUpload, UploadExtra
from airflow_s3commit.protocol.model.sealed_job import CommittedTask, PlanRecord, SealRecord
from airflow_s3commit.protocol.sweep.apply import sweep
from airflow_s3commit.store.base import ObjectInfo
from tests.cases import each
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Crash, Lake, named

LAYOUT = Layout.of(Destination(BUCKET, ROOT), OURS)
HADOOP = Layout.of(Destination(BUCKET, ROOT), "job_202502170001_0003")
RECORD_OF_JOB = JobRecord(**LAYOUT.place, options=JobOptions(), created=1, nonce="n-1")
OWN, ADOPTED = RECORD_OF_JOB, msgspec.structs.replace(RECORD_OF_JOB, adopted=True)
PROOFS = get_args(Proof)

OUR_NAME = ROOT + named("dt=1/part-0.parquet")
THEIR_NAME = ROOT + named("dt=1/part-0.parquet", THEIRS)
NO_NAME = f"{ROOT}dt=1/part-0.parquet"


@each("record", [OWN, ADOPTED, None])
@each("proof", [proof for proof in PROOFS if proof not in ("writer", "plan", "release")])
@each("kind", ["upload", "object"])
def test_output_is_known_by_its_name(kind: Any, proof: Any, record: JobRecord | None) -> None:
    """A file with the job's id in its name is the job's; of an adopted job also what a record of it names."""
    assert why_not(LAYOUT, record, Thing(kind, BUCKET, OUR_NAME, proof)) is None
    is_recorded = record is ADOPTED and proof == "record"
    theirs = why_not(LAYOUT, record, Thing(kind, BUCKET, THEIR_NAME, proof))
    assert (theirs is None) == is_recorded
    nobodys = why_not(LAYOUT, record, Thing(kind, BUCKET, NO_NAME, proof))
    assert (nobodys is None) == (is_recorded or (record is None and proof != "name"))


def test_an_id_that_is_not_a_uuid_proves_nothing() -> None:
    """A job of Hadoop owns what its records name, but nothing by a file's name."""
    key = f"{ROOT}dt=1/part-0-{HADOOP.job_id}.parquet"
    for record in (ADOPTED, None):
        assert why_not(HADOOP, record, Thing("upload", BUCKET, key, "name")) is not None
        assert why_not(HADOOP, record, Thing("upload", BUCKET, key, "record")) is None
    assert why_not(HADOOP, None, Thing("upload", BUCKET, THEIR_NAME, "record")) is not None


@each("record", [OWN, ADOPTED, None])
@each("proof", PROOFS)
@each("kind", ["upload", "object"])
@each(
    ("bucket", "key"),
    [
        ("other", OUR_NAME),
        (BUCKET, "trains/" + named("part-0")),
        (BUCKET, "flights"),
        (BUCKET, ROOT),
        (BUCKET, named("part-0")),
    ],
)
def test_nothing_outside_the_destination_belongs_to_a_job(
    bucket: str, key: str, kind: Any, proof: Any, record: JobRecord | None
) -> None:
    """Whatever claims to be the job's, its output is below the destination."""
    assert "lies outside" in (why_not(LAYOUT, record, Thing(kind, bucket, key, proof)) or "")


@each("proof", [proof for proof in PROOFS if proof != "writer"])
@each(
    "path",
    [
        "_SUCCESS",
        "_s3commit/store.json",
        f"_s3commit/manifests/{THEIRS}.json",
        f"__magic_job-{THEIRS}/state.json",
        f"_x/{named('part-0')}",
        f".x/{named('part-0')}",
        "dt=1/",
    ],
)
def test_no_hidden_object_is_output(path: str, proof: Any) -> None:
    """Records, markers and hidden files are never deleted as data, even if a record or plan names them."""
    assert why_not(LAYOUT, ADOPTED, Thing("object", BUCKET, ROOT + path, proof)) is not None


@pytest.mark.parametrize(
    ("bucket", "key", "own"),
    [
        (BUCKET, LAYOUT.state, True),
        (BUCKET, LAYOUT.staging.key("anything"), True),
        (BUCKET, LAYOUT.success, True),
        (BUCKET, LAYOUT.manifest, False),
        (BUCKET, LAYOUT.aborted, False),
        (BUCKET, LAYOUT.staging.prefix, True),
        (BUCKET, ROOT, False),
        (BUCKET, f"{ROOT}__magic_job-{THEIRS}/state.json", False),
        (BUCKET, OUR_NAME, False),
        ("other", LAYOUT.state, False),
        ("other", LAYOUT.success, False),
    ],
)
def test_records_are_known_by_their_place(bucket: str, key: str, own: bool) -> None:
    """A job removes records of its own staging, the lock and the marker, but no manifest or other records."""
    assert (why_not(LAYOUT, OWN, Thing("record", bucket, key, "staging")) is None) == own


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, None),
        ({"destination": None}, None),
        ({"job_id": THEIRS}, f"of job {THEIRS}"),
        ({"staging": "s3://lake/trains/"}, "copied here"),
        ({"destination": "s3://lake/trains/"}, "on s3://lake/trains/"),
    ],
)
def test_a_record_speaks_for_its_own_place(fields: dict[str, Any], refused: str | None) -> None:
    """A record of another job, or for another place, is refused, and the message says which."""
    record = AbortedRecord(**LAYOUT.place, since=1)
    record = msgspec.structs.replace(record, **fields)
    if refused is None:
        check_place(record, LAYOUT, "s3://lake/there")
    else:
        with pytest.raises(ForeignRecord, match=refused):
            check_place(record, LAYOUT, "s3://lake/there")


def test_an_object_that_carries_another_job_s_id_is_not_ours() -> None:
    """The job that an object names outweighs an upload's id and the ETag of its parts."""
    etag = "0cc175b9c0f1b6a831c399e269772661"
    hadoops = PendingUpload(
        uri="s3a://lake/x", uploadId="u", bucket=BUCKET, destinationKey=NO_NAME, jobId=OURS,
        etags=[etag], length=1,
    )  # fmt: skip
    ours = msgspec.structs.replace(hadoops, s3commit=UploadExtra(upload="id-1"))

    def standing(metadata: dict[str, str]) -> ObjectInfo:
        return ObjectInfo(NO_NAME, 1, hadoops.expected_etag, 0.0, metadata)

    assert is_ours(hadoops, standing({}))
    assert not is_ours(hadoops, standing({"s3commit-job": THEIRS}))
    assert is_ours(ours, standing({"s3commit-job": OURS, "s3commit-upload": "id-1"}))
    assert not is_ours(ours, standing({"s3commit-job": THEIRS, "s3commit-upload": "id-1"}))
    assert not is_ours(ours, standing({}))


KEY, OTHER = b"k" * 32, b"o" * 32
SIGNER = HmacSigner(KEY)
FILES = {"dt=1/part-0.csv": b"one", "dt=2/part-0.csv": b"two"}
OLD = {"dt=1/old.csv": b"old"}

STAGING = f"{ROOT}__magic_job-{OURS}/"
RECORD = f"{STAGING}job.json"
SEAL = f"{STAGING}sealed.json"
STAGE_SEAL = f"{STAGING}stages/spark-1/sealed.json"
BASELINE = f"{HOME}log/00000000000000000001.json"
ENTRY = f"{HOME}log/00000000000000000002.json"
MANIFEST = f"{HOME}manifests/{OURS}.json"
KINDS: dict[str, type[msgspec.Struct]] = {
    "job": JobRecord, "seal": SealRecord, "plan": PlanRecord, "manifest": ManifestRecord, "entry": LogEntry,
}  # fmt: skip

Step = Callable[[Job], object]


def keyed(lake: Lake, signer: HmacSigner | None = SIGNER) -> Job:
    """Return the job as a new process with a key sees it."""
    job = lake.job()
    job._context = replace(job._context, signer=signer)
    return job


def sealed(lake: Lake) -> Job:
    """Return a job that processes with the key set up and sealed, and one without it wrote."""
    lake.put(OLD)
    options = JobOptions(committer="magic", conflict_mode="replace")
    Job.setup(
        lake.store, lake.destination, options=options, job_id=OURS, signer=SIGNER,
        clock=lake.clock, new_id=lake.new_id,
    )  # fmt: skip
    lake.run_stage(lake.job(), FILES)
    job = keyed(lake)
    job.seal()
    return job


def planned(lake: Lake) -> Job:
    """Return a sealed job with its plan."""
    job = sealed(lake)
    job.plan()
    return job


def refused(lake: Lake, *steps: Step, signer: HmacSigner | None = SIGNER) -> None:
    """Check that each step is refused and leaves the store unchanged."""
    before = lake.everything()
    for step in steps:
        with pytest.raises(SignatureRefused):
            step(keyed(lake, signer))
        assert lake.everything() == before


def undone(lake: Lake, *steps: Step) -> None:
    """Check that each step is refused and leaves data, uploads and records; only the state may change."""
    before = lake.visible(), lake.pending(), lake.left()
    for step in steps:
        with pytest.raises((SignatureRefused, InvalidRecord)):
            step(keyed(lake))
        assert (lake.visible(), lake.pending(), lake.left()) == before


#: Other values of fields that have few.
_CHOICES: dict[str, object] = {
    "committer": "directory",
    "conflict_mode": "fail",
    "removes": "nothing",
}


def changes(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the record with each of its fields changed, left out, or added."""
    made = []
    for name, value in record.items():
        if name in _CHOICES:
            other: Any = _CHOICES[name]
        elif isinstance(value, str):
            other = value + "0"
        elif isinstance(value, bool):
            other = not value
        elif isinstance(value, int):
            other = value + 1
        elif isinstance(value, list):
            other = value[:-1]
        else:
            other = {}
        if name not in ("version", "job_id", "destination", "staging") and other != value:
            made.append({**record, name: other})
    return [*made, {**record, "later": 1}, {**record, "signature": None}]


@pytest.mark.parametrize("name", ["job", "seal", "plan"])
def test_no_field_can_be_changed(name: str) -> None:
    """No step acts on a signed record after any change, and the store stays the same."""
    lake = Lake()
    planned(lake)
    plan = lake.context().layout.plan(json.loads(lake.get(f"{STAGING}state.json"))["plan_id"])
    key = {"job": RECORD, "seal": SEAL, "plan": plan}[name]
    record = json.loads(lake.get(key))
    assert record["signature"]
    tried = changes(record)
    assert len(tried) >= 6
    for other in tried:
        lake.store.put(BUCKET, key, json.dumps(other, separators=(",", ":")).encode())
        # Without its ETag an untrusted plan is made again.
        etag = lake.store.head(BUCKET, key).etag if key == plan else None
        steps: list[Step] = [lambda job, etag=etag: job.commit(plan_etag=etag)]  # type: ignore[misc]
        if key == RECORD:
            steps += [Job.abort, Job.recover]
        if key == SEAL:
            pin(lake, key)
        refused(lake, *steps)


def pin(lake: Lake, key: str) -> None:
    """Let the unsigned state name the seal as it is now."""
    state = json.loads(lake.get(f"{STAGING}state.json"))
    state["seal_etag"] = lake.store.head(BUCKET, key).etag
    lake.store.put(BUCKET, f"{STAGING}state.json", json.dumps(state).encode())


def test_a_manifest_that_was_changed_proves_nothing() -> None:
    """No field of a committed job's manifest can be changed or replaced by another job's signed manifest."""
    lake = Lake()
    planned(lake).commit()
    record = json.loads(lake.get(MANIFEST))
    place = Destination.parse(lake.destination)
    assert read_manifest(lake.store, place, OURS, signer=SIGNER) == keyed(lake).manifest()
    for other in changes(record):
        lake.store.put(BUCKET, MANIFEST, json.dumps(other, separators=(",", ":")).encode())
        refused(lake, Job.manifest, Job.abort, Job.commit)
        with pytest.raises(SignatureRefused):
            read_manifest(lake.store, place, OURS, signer=SIGNER)


def test_an_entry_of_the_log_that_was_changed_decides_nothing() -> None:
    """No field of a signed job's own entry can be changed, and no entry that it did not sign ends it."""
    lake = Lake()
    planned(lake)
    lake.store.die("put", ENTRY, after=True)
    with pytest.raises(Crash):
        keyed(lake).commit()
    lake.store.rest()
    record = json.loads(lake.get(ENTRY))
    assert record["signature"]
    for other in changes(record):
        lake.store.put(BUCKET, ENTRY, json.dumps(other, separators=(",", ":")).encode())
        undone(lake, Job.commit, Job.abort, Job.recover)
    lake.store.put(BUCKET, ENTRY, json.dumps(record, separators=(",", ":")).encode())
    assert keyed(lake).commit().generation == 2


@pytest.mark.parametrize("kind", ["commit", "abandon"])
def test_an_entry_of_another_key_ends_no_signed_job(kind: str) -> None:
    """Without the job's key no process can say that a signed job is committed, or that it never will be."""
    lake = Lake()
    planned(lake)
    place = {"job_id": OURS, "destination": lake.destination, "staging": f"s3://{BUCKET}/{STAGING}"}
    forged = LogEntry(
        **place,
        number=2,
        kind="abandon",
        epoch=1,
        aborted=AbortedRecord(**place, since=0),
        nonce="n",
    )
    donor = Lake()
    planned(donor).commit()
    lake.store.put(BUCKET, BASELINE, donor.get(BASELINE))
    if kind == "commit":
        forged = msgspec.structs.replace(decode(LogEntry, donor.get(ENTRY), ENTRY), signature=None)
    for signer in (None, HmacSigner(OTHER)):
        entry = sign(forged, signer) if signer is not None else forged
        lake.store.put(BUCKET, ENTRY, encode(entry))
        undone(lake, Job.commit, Job.abort, Job.recover)


def test_one_record_cannot_stand_for_another() -> None:
    """The same bytes as another type, or with different spaces, have another signature."""
    lake = Lake()
    planned(lake)
    body = lake.get(RECORD)
    for other in (
        json.dumps(json.loads(body)).encode(),
        body + b" ",
        body.replace(b'"signature"', b' "signature"'),
    ):
        lake.store.put(BUCKET, RECORD, other)
        refused(lake, Job.commit, Job.abort)


def test_an_unsigned_job_is_refused_if_keys_are_given() -> None:
    """A planted job, valid otherwise, is neither committed nor ended; without a key it is."""
    lake = Lake()
    lake.put(OLD)
    lake.sealed(FILES).plan()
    refused(lake, Job.commit, Job.plan, Job.seal, Job.abort, Job.recover, Job.finish)
    lake.job().commit()
    refused(lake, Job.manifest)


def test_a_process_without_the_key_writes_and_does_not_act() -> None:
    """Spark's processes write and count output of a signed job; sealing, planning and ending need the key."""
    lake = Lake()
    planned(lake)
    refused(lake, Job.seal, Job.plan, Job.commit, Job.finish, Job.abort, Job.recover, signer=None)
    refused(lake, lambda job: job.abort(force=True), signer=None)
    report = sweep(lake.store, Destination.parse(lake.destination), older_than=0.0, dry_run=False, threads=0)
    assert [failure.reason.partition(":")[0] for failure in report.failures] == ["SignatureRefused"]
    keyed(lake).commit()
    assert len(lake.data()) == len(FILES)


def test_a_sweep_with_the_key_ends_what_it_signed() -> None:
    """A sweep with a dead job's key ends the job, and one with another key leaves it."""
    lake = Lake()
    sealed(lake)
    place = Destination.parse(lake.destination)
    told: dict[str, Any] = {"older_than": 0.0, "dry_run": False, "threads": 0}
    before = lake.everything()
    other = sweep(lake.store, place, signer=HmacSigner(OTHER), **told)
    assert not other.jobs
    assert lake.everything() == before
    assert [job.job_id for job in sweep(lake.store, place, signer=SIGNER, **told).jobs] == [OURS]
    assert lake.pending() == []


def test_keys_rotate() -> None:
    """With a new key before the old one, jobs of the old key can be ended; with the new key alone not."""
    lake = Lake()
    planned(lake)
    refused(lake, Job.commit, signer=HmacSigner(OTHER))
    keyed(lake, HmacSigner(OTHER, KEY)).commit()
    assert keyed(lake, HmacSigner(OTHER)).manifest() is not None
    refused(lake, Job.manifest)


def test_a_key_is_long_and_never_shown() -> None:
    """Fewer than 32 bytes are refused without being repeated, and a signer never shows its keys."""
    for keys in ((), (b"short",), (KEY, b"short")):
        with pytest.raises(InvalidOption) as refusal:
            HmacSigner(*keys)
        assert "short" not in str(refusal.value)
    text = f"  {'a' * 40}\n{'b' * 40} "
    assert HmacSigner.of_text(text).verify(b"m", HmacSigner(b"b" * 40).sign(b"m"))
    assert "aaaa" not in repr(HmacSigner.of_text(text))
    assert "kkkk" not in repr(keyed(Lake())._context)


def _forge_pendingset(lake: Lake) -> dict[str, str]:
    """Replace a pendingset by a changed one, and return the fields that would name it."""
    key = lake.pendingset_key()
    lake.tamper(key, old=b'"created":', new=b'"text":"x","created":')
    return _names(lake, key)


def _names(lake: Lake, key: str) -> dict[str, str]:
    return {
        "etag": lake.store.head(BUCKET, key).etag,
        "sha256": hashlib.sha256(lake.get(key)).hexdigest(),
    }


def test_output_replaced_together_with_what_names_it_is_refused() -> None:
    """A pendingset and stage seal that match each other still do not match the signed seal."""
    lake = Lake()
    planned(lake)
    seal = json.loads(lake.get(STAGE_SEAL))
    seal["tasks"][0] |= _forge_pendingset(lake)
    lake.store.put(BUCKET, STAGE_SEAL, json.dumps(seal).encode())
    before = lake.everything()
    with pytest.raises(InvalidRecord, match="was changed after it was written"):
        keyed(lake).commit()
    assert lake.everything() == before


def test_the_digest_alone_catches_a_forged_etag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other bytes with the pinned ETag are refused by their SHA-256."""
    lake = Lake()
    planned(lake)
    for key in (STAGE_SEAL, lake.pendingset_key()):
        body = lake.get(key)
        stored = lake.store.inner._buckets[BUCKET].objects[key]
        forged = replace(stored, body=body + b" ")
        lake.store.inner._buckets[BUCKET].objects[key] = forged
        with pytest.raises(InvalidRecord, match="its SHA-256 is not"):
            keyed(lake).commit()
        assert set(lake.data()) == set(OLD)
        lake.store.inner._buckets[BUCKET].objects[key] = stored


def test_signed_jobs_take_no_output_without_a_digest() -> None:
    """Output that an older version's executor committed is refused when a signed job's stage is sealed."""
    lake = Lake()
    Job.setup(lake.store, lake.destination, job_id=OURS, signer=SIGNER, new_id=lake.new_id)
    task = lake.run_task(lake.job(), FILES)
    assert task.sha256 == hashlib.sha256(lake.get(lake.pendingset_key())).hexdigest()
    older = CommittedTask.from_dict({**task.to_dict(), "sha256": None})
    with pytest.raises(InvalidRecord, match="nothing names its SHA-256"):
        lake.job().seal_stage("spark", "1", [older])
    lake.job().seal_stage("spark", "1", [task])


@pytest.mark.parametrize("kind", KINDS.values())
def test_the_signature_is_the_last_field(kind: type[msgspec.Struct]) -> None:
    """All bytes before the signature are signed, so a field after it would not be covered."""
    assert kind.__struct_fields__[-1] == "signature"
    assert type(None) in get_args(msgspec.structs.fields(kind)[-1].type)
