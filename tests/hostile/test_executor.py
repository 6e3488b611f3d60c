"""What an executor that was taken over can do with its role, and what it cannot.

Its store allows what the printed policy of executors allows. It knows every id and key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pytest

from airflow_s3commit import Job
from airflow_s3commit.exceptions import AccessDenied, AlreadyCommitted, InvalidRecord, JobClosed, JobFailed
from airflow_s3commit.protocol.doctor.policy import iam_policies
from airflow_s3commit.protocol.inspect.verify_table import TableReport, verify
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import latest_manifest, read_table
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from tests.cases import each
from tests.iam import allows
from tests.protocol.building import BUCKET, HOME, OURS, ROOT, THEIRS, Lake, complete, named

FLIGHTS = Destination(BUCKET, ROOT)
FILES = {"dt=1/a": b"1", "dt=2/a": b"2"}

_ACTIONS = {
    "abort_upload": "s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
    "delete_many": "s3:DeleteObject",
    "get": "s3:GetObject",
    "get_range": "s3:GetObject",
    "head": "s3:GetObject",
    "list_parts": "s3:ListMultipartUploadParts",
}
_LISTINGS = {"list_objects": "s3:ListBucket", "list_uploads": "s3:ListBucketMultipartUploads"}

T = TypeVar("T")


class ExecutorStore(ForwardingStore):
    """A store that refuses what the policy of executors does not allow."""

    policy = iam_policies(FLIGHTS)["executors"]

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, if the policy allows it."""
        arn = f"arn:aws:s3:::{bucket}"
        action, resource = _LISTINGS.get(verb), arn
        if action is None:
            action, resource = _ACTIONS.get(verb, "s3:PutObject"), f"{arn}/{key}"
        if not allows(self.policy, action, resource):
            raise AccessDenied(f"{action} on {resource}")
        return make()

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)


def taken_over(lake: Lake) -> ExecutorStore:
    """Return the store of a hostile executor."""
    return ExecutorStore(lake.store)


def table(lake: Lake) -> set[str]:
    """Return the paths of the files of the table."""
    found = read_table(lake.store, FLIGHTS)
    files = files_in(lake.store, FLIGHTS, found.sources, found.live)
    return {file.key.removeprefix(ROOT) for file in files}


def ours() -> set[str]:
    """Return the paths of the files that our job commits."""
    return {named(path) for path in FILES}


def test_an_honest_executor_needs_no_more() -> None:
    """Task attempts write, commit, seal their stage and abort with the executors' role alone."""
    lake = Lake()
    lake.set_up()
    job = Job.at(taken_over(lake), lake.reference(), clock=lake.clock, new_id=lake.new_id)
    lake.run_stage(job, FILES)
    with job.task_attempt("spark", "2", "0", "1", threads=0, min_part_bytes=1) as attempt:
        attempt.open("dt=1/never").write(b"x")
    assert len(lake.pending()) == 2
    lake.job().commit(stages=[("spark", "1")])
    assert table(lake) == ours()
    with pytest.raises(AlreadyCommitted), job.task_attempt("spark", "1", "9", "1", threads=0) as attempt:
        attempt.open("dt=1/late")


# What it can.


def test_it_can_write_over_a_file_of_the_table_and_verify_names_it() -> None:
    """Nothing in S3 tells one writer of data from another; what changed is found by a verification."""
    lake = Lake()
    lake.sealed(FILES).commit()
    taken_over(lake).put(BUCKET, ROOT + named("dt=1/a"), b"7")
    report = verify(lake.store, FLIGHTS)
    assert isinstance(report, TableReport)
    assert not report.sound
    assert named("dt=1/a") in str(report.to_dict())


def test_it_can_show_a_file_to_readers_that_list_and_the_table_does_not_have_it() -> None:
    """It may complete an upload, or put an object, before any commit; readers of the log do not see it."""
    lake = Lake()
    lake.sealed({"dt=9/z": b"z"}, job_id=THEIRS).commit()
    lake.sealed(FILES)
    store = taken_over(lake)
    store.put(BUCKET, f"{ROOT}dt=1/planted", b"x")
    [upload] = [one for one in lake.store.list_uploads(BUCKET, ROOT) if one.key.endswith(named("dt=1/a"))]
    complete(store, upload.key, upload.upload_id)
    assert table(lake) == {named("dt=9/z", THEIRS)}
    lake.job().commit()
    assert table(lake) == {*ours(), named("dt=9/z", THEIRS)}
    assert "dt=1/planted" not in lake.data()


def test_it_can_abort_uploads_and_then_the_commit_fails() -> None:
    """The job is aborted as a whole: the table is as before, and nothing of it stays."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(FILES)
    store = taken_over(lake)
    for upload in list(lake.store.list_uploads(BUCKET, ROOT)):
        store.abort_upload(BUCKET, upload.key, upload.upload_id)
    with pytest.raises(JobFailed):
        lake.job().commit()
    assert (lake.data(), lake.staging()) == ({"dt=1/old": b"old"}, [])


def test_it_can_add_a_stage_unless_the_seal_names_the_stages() -> None:
    """A job that is sealed with whatever is there takes a forged stage, and else it does not."""
    for is_named in (False, True):
        lake = Lake()
        lake.run_stage(lake.set_up(), FILES)
        hostile = Job.at(taken_over(lake), lake.reference(), clock=lake.clock, new_id=lake.new_id)
        lake.run_stage(hostile, {"dt=1/forged": b"f"}, stage="forged")
        job = lake.job()
        job.seal([("spark", "1")] if is_named else None)
        job.commit()
        assert table(lake) == ours() | (set() if is_named else {named("dt=1/forged")})


# What it cannot.


@each(
    "key",
    [
        f"{HOME}log/{1:020d}.json",
        f"{HOME}log/{2:020d}.json",
        f"{HOME}jobs/{OURS}.json",
        f"{HOME}open/{OURS}/job.json",
        f"{HOME}open/{OURS}/sealed.json",
        f"{HOME}checkpoints/{13:020d}.jsonl.gz",
        f"{HOME}lists/{OURS}-{'0' * 64}.jsonl",
        f"{ROOT}_SUCCESS",
        f"{ROOT}dt=1/_SUCCESS",
    ],
)
def test_it_cannot_change_what_decides(key: str) -> None:
    """No entry, receipt, record of a job, list or marker can be written, completed, deleted or aborted."""
    lake = Lake()
    lake.sealed(FILES, partition_success=True)
    store, before = taken_over(lake), lake.everything()
    for act in (
        lambda: store.put(BUCKET, key, b"{}"),
        lambda: store.put(BUCKET, key, b"{}", if_none_match=True),
        lambda: store.create_upload(BUCKET, key, metadata={}, content_type="x"),
        lambda: store.delete(BUCKET, key),
        lambda: store.abort_upload(BUCKET, key, "upload"),
    ):
        with pytest.raises(AccessDenied):
            act()
    assert lake.everything() == before


def test_it_cannot_take_any_step_of_the_committer() -> None:
    """Setup, seal, commit and abort are refused before they change anything."""
    lake = Lake()
    lake.run_stage(lake.set_up(), FILES)
    job = Job.at(taken_over(lake), lake.reference(), clock=lake.clock, new_id=lake.new_id)
    before = lake.everything()
    for step in (
        job.seal,
        job.commit,
        lambda: job.abort(reason="hostile"),
        lambda: Job.setup(taken_over(lake), FLIGHTS, job_id=THEIRS),
    ):
        with pytest.raises(AccessDenied):
            step()
        assert lake.everything() == before


@each("what", ["pendingset", "stage"])
def test_it_cannot_change_what_is_sealed(what: str) -> None:
    """The commit compares SHA-256 digests, so a changed pendingset or seal of a stage publishes nothing."""
    lake = Lake()
    lake.sealed(FILES)
    key = lake.pendingset_key()
    if what == "stage":
        key = f"{ROOT}__magic_job-{OURS}/stages/spark-1/sealed.json"
    taken_over(lake).put(BUCKET, key, lake.get(key).replace(b'"length":1', b'"length":2') + b" ")
    with pytest.raises(InvalidRecord, match="was changed after it was written"):
        lake.job().commit()
    assert lake.data() == {}


def test_it_cannot_put_a_pendingset_in_the_place_of_a_reported_one() -> None:
    """The seal of the stage goes by the digest that the attempt reported."""
    lake = Lake()
    committed = lake.run_task(lake.set_up(), FILES)
    taken_over(lake).put(BUCKET, lake.pendingset_key(), lake.get(lake.pendingset_key()) + b" ")
    with pytest.raises(InvalidRecord, match="was changed"):
        lake.job().seal_stage("spark", "1", [committed])


@each(
    "key", ["private/secret", f"{ROOT}../private", named(f"{ROOT}dt=1/b", THEIRS), f"{ROOT}_s3commit/log/x"]
)
def test_it_cannot_make_a_commit_reach_further(key: str) -> None:
    """A forged pendingset that names a key outside, or of another job, is refused before anything is done."""
    lake = Lake()
    lake.put({named("dt=1/b", THEIRS): b"theirs"})
    lake.store.put(BUCKET, "private/secret", b"private")
    job, forged = lake.set_up(), lake.forge_task({key: BUCKET})
    before = lake.visible()

    def publish() -> None:
        job.seal_stage("spark", "1", [forged])
        job.commit(stages=[("spark", "1")])

    with pytest.raises(InvalidRecord):
        publish()
    assert lake.visible() == before


def test_it_cannot_bring_back_an_aborted_job() -> None:
    """What it uploads or records for an ended job is never in the table, and its id is never used again."""
    lake = Lake()
    lake.put({"dt=1/old": b"old"})
    lake.sealed(FILES).abort()
    store = taken_over(lake)
    with pytest.raises(JobClosed):
        Job.at(store, lake.reference()).task_attempt("spark", "1", "0", "2", threads=0).open("dt=1/a")
    store.put(BUCKET, ROOT + named("dt=1/a"), b"1")
    with pytest.raises(JobClosed):
        lake.job().commit()
    assert table(lake) == {"dt=1/old"}
    with pytest.raises(JobClosed):
        lake.set_up()


def test_it_cannot_send_a_reader_elsewhere() -> None:
    """Readers go by the log and its digests, which it can neither read nor write."""
    lake = Lake()
    lake.sealed(FILES).commit()
    store = taken_over(lake)
    with pytest.raises(AccessDenied):
        latest_manifest(store, FLIGHTS)
    forged = json.loads(lake.get(f"{ROOT}_SUCCESS"))
    with pytest.raises(AccessDenied):
        store.put(BUCKET, f"{ROOT}_SUCCESS", json.dumps(forged).encode())
