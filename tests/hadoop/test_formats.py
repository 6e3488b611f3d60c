"""What we write is read by Hadoop's own classes, and what those write is read by us."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_s3commit.protocol.model.codec import decode, encode
from airflow_s3commit.protocol.model.manifest import SuccessData
from airflow_s3commit.protocol.model.pendingset import (
    PendingSet,
    PendingUpload,
    UploadEtag,
)
from tests.hadoop.real_hadoop import Hadoop
from tests.protocol.building import BUCKET, Lake

pytestmark = [pytest.mark.all, pytest.mark.xdist_group("hadoop")]

#: Which spelling a release reads.
SPELLING: dict[str, Any] = {"3.4.1": "hadoop-3.3", "3.5.0": "hadoop-3.4.2"}

PREFIX = "out put/50%+ü/"
TASKS: tuple[dict[str, bytes], ...] = (
    {"day=17/a b.csv": b"two", "day=17/ü%20#?&.csv": b"1"},
    {"c+d;e='x',~!$().csv": b"three"},
    {},
)
FILES = sum(map(len, TASKS))
CHECKED = PendingUpload(
    uri="s3a://lake/a", uploadId="u", bucket="lake", destinationKey="a", length=1, partCount=1,
    etags=[UploadEtag("e", "CRC32C", "yZRlqg==")],
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What a release of Hadoop says of files of ours.

    Attributes:
        release: Its version.
        files: The files of a job, in the spelling for this release, and a pending upload with a checksum.
        said: What it printed of each, by name; of one in the other release's spelling under ``other``.
    """

    release: str
    files: dict[str, bytes]
    said: dict[str, list[list[str]]]

    def uploads(self, ending: str) -> list[PendingUpload]:
        """Return what the job's pendingsets, or records of uploads, name."""
        bodies = [body for name, body in self.files.items() if name.startswith("0") and name.endswith(ending)]
        if ending == ".pending":
            return [decode(PendingUpload, body, "x") for body in bodies]
        return [upload for body in bodies for upload in decode(PendingSet, body, "x").commits]


@pytest.fixture(scope="module")
def reading(hadoop: Hadoop, tmp_path_factory: pytest.TempPathFactory) -> Reading:
    """Have a release read a job's own files: pendingsets, records of uploads and ``_SUCCESS``."""
    lake, directory = Lake(prefix=PREFIX), tmp_path_factory.mktemp("files")
    job = lake.sealed(*TASKS, track_pending="s3", pendingset_format=SPELLING[hadoop.release])
    files = {
        key.rpartition("/tasks/")[2].replace("/", "-"): lake.get(key)
        for key in lake.keys("")
        if key.endswith((".pendingset", ".pending"))
    }
    job.commit()
    files["_SUCCESS"] = lake.get(f"{PREFIX}_SUCCESS")
    files["checked.pending"] = encode(CHECKED.in_format(SPELLING[hadoop.release]))
    other = next(spelling for release, spelling in SPELLING.items() if release != hadoop.release)
    for name, body in {**files, "other.pending": encode(CHECKED.in_format(other))}.items():
        (directory / name).write_bytes(body)
    said: dict[str, list[list[str]]] = {}
    for line in hadoop.run("LoadFiles", *map(str, directory.iterdir())):
        if line[0] == "file":
            lines = said[Path(line[1]).name] = []
        else:
            lines.append(line)
    return Reading(hadoop.release, files, said)


def test_hadoop_reads_what_we_write(reading: Reading) -> None:
    """Every upload with its parts and its path, whatever characters are in it, and the marker."""
    lines = [line for name in reading.files for line in reading.said[name] if name != "checked.pending"]
    assert [line for line in lines if line[0] == "refused"] == []
    for ending in (".pendingset", ".pending"):
        uploads = reading.uploads(ending)
        assert len(uploads) == FILES
        said = [
            line
            for name, its in reading.said.items()
            if name[0] == "0" and name.endswith(ending)
            for line in its
        ]
        read = [line[1:] for line in said if line[0] == "upload"]
        keys = [upload.destinationKey for upload in uploads]
        assert sorted(read) == sorted([BUCKET, key, f"s3a://{BUCKET}/{key}"] for key in keys)
        parts = [line[2] for line in said if line[0] == "part"]
        assert sorted(parts) == sorted(etag for upload in uploads for etag in upload.bare_etags)


def test_our_fields_are_hadoops_and_mean_the_same(reading: Reading) -> None:
    """What Hadoop writes after reading ours has the same fields with the same values, and is read by us."""
    for name, body in reading.files.items():
        kind, again = reading.said[name][-1]
        assert kind == "again"
        ours, theirs = _without_extras(json.loads(body)), json.loads(again)
        assert set(ours) == set(theirs)
        assert _meaning(ours) == _meaning(theirs)
        if name.endswith(".pendingset"):
            commits = decode(PendingSet, again.encode(), "x").commits
            assert [u.etags for u in commits] == [u.etags for u in decode(PendingSet, body, "x").commits]
        elif name.endswith(".pending"):
            assert decode(PendingUpload, again.encode(), "x").etags == decode(PendingUpload, body, "x").etags
        else:
            success = decode(SuccessData, again.encode(), "x")
            assert success == decode(SuccessData, body, "x")
            assert success.iostatistics is not None
            assert success.iostatistics.counters["committer_tasks_completed"] == len(TASKS)


def test_each_release_needs_its_spelling(reading: Reading) -> None:
    """In the other release's spelling a file is refused, so the option is what it takes."""
    [refused] = reading.said["other.pending"]
    assert refused[0] == "refused"
    assert "MismatchedInputException" in refused[2]


def test_checksums_of_parts_are_what_hadoop_completes_with(reading: Reading) -> None:
    """A release that knows checksums hands them to the store; an older one's spelling has no room."""
    checksum = "yZRlqg==" if reading.release == "3.5.0" else "null"
    assert ["part", "1", "e", checksum] in reading.said["checked.pending"]


def _without_extras(record: Any) -> Any:
    """Leave out what is not Hadoop's."""
    if isinstance(record, dict):
        return {name: _without_extras(value) for name, value in record.items() if name != "s3commit"}
    return [_without_extras(value) for value in record] if isinstance(record, list) else record


def _meaning(record: Any) -> Any:
    """Leave out what says nothing: where a file was loaded from, and statistics without a number."""
    silent = ("filename", "iostatistics")
    if isinstance(record, dict):
        return {name: _meaning(value) for name, value in record.items() if name not in silent}
    return [_meaning(value) for value in record] if isinstance(record, list) else record
