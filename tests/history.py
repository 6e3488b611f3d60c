"""What a destination holds, by its log alone: an oracle that shares no code with the protocol.

It reads the entries in order and applies each as the documentation words it: ``append`` adds its files,
``replace`` takes away all that came before it in its partitions, ``fail`` found nothing there; what a commit
with a retention takes away stays in place until a release, unless a rollback brings it back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

__all__ = ["Files", "History", "is_data", "partition"]

#: ETags by key.
Files: TypeAlias = dict[str, str]


def is_data(path: str) -> bool:
    """Return whether a reader that lists takes this path for data."""
    return not any(name.startswith(("_", ".")) for name in path.split("/"))


def partition(key: str) -> str:
    """Return the directory of a key."""
    return key.rpartition("/")[0]


class History:
    """The generations of a destination.

    Args:
        before: The data that was there before its log.
        read: Returns the body of an object of the destination's bucket.

    Attributes:
        head: Number of the newest entry.
        ended: Kind of each job's entry.
        files: The data after each commit, by generation; 0 is before all of them.
        by_job: The files that each committed job added.
        brought_back: The files that each rollback brought back, by its generation.
        retained: The commit that took away each file that is to stay in place.
        released: The files that must not come back.
        lists: The keys of the lists of files that entries name, without those that lie within them.
        retained_at: What was retained after each entry.

    """

    def __init__(self, before: Mapping[str, str], read: Callable[[str], bytes]) -> None:
        self.head = 0
        self.ended: dict[str, str] = {}
        self.files: dict[int, Files] = {0: dict(before)}
        self.by_job: dict[str, Files] = {}
        self.retained: dict[str, int] = {}
        self.released: set[str] = set()
        self.lists: set[str] = set()
        self.brought_back: dict[int, set[str]] = {}
        self.retained_at: dict[int, dict[str, int]] = {}
        self._manifests: dict[int, dict[str, Any]] = {}
        self._read = read

    def fold(self, keys: Iterable[str]) -> History:
        """Take the entries with these keys, in their order, and return itself."""
        for key in sorted(keys):
            self.take(self._read(key))
        return self

    @property
    def newest(self) -> int:
        """Return the newest generation."""
        return max(self.files)

    @property
    def data(self) -> Files:
        """The data at the newest generation."""
        return self.files[self.newest]

    def take(self, body: bytes) -> None:
        """Apply the next entry."""
        self._take(json.loads(body))
        self.retained_at[self.head] = dict(self.retained)

    def _take(self, entry: dict[str, Any]) -> None:
        self.head += 1
        assert entry["number"] == self.head, "entries are consecutive"
        if entry["kind"] == "release":
            self._release(entry["release"]["commits"])
        if entry["kind"] in ("baseline", "release"):
            return
        job = entry["job_id"]
        assert job not in self.ended, f"job {job} ended twice"
        self.ended[job] = entry["kind"]
        if entry["manifest"] is not None:
            self._manifests[self.head] = entry["manifest"]
        if entry["manifest"] is not None and "within" not in entry["manifest"]:
            self.lists.add(entry["manifest"]["files"].removeprefix("s3://").partition("/")[2])
        if entry["kind"] == "commit":
            before = self.data
            if entry["restores"] is None:
                self._commit(job, entry["manifest"])
            else:
                self._roll_back(entry)
            gone = before.keys() - self.data.keys()
            if entry["retain"]:
                self.retained |= dict.fromkeys(gone, self.head)

    def check_checkpoint(self, body: bytes, root: str) -> None:
        """Check that a checkpoint is the fold of the entries up to its own.

        Args:
            body: Its text, decompressed.
            root: The destination's prefix.

        """
        head, *lines = map(json.loads, body.splitlines())
        number, live, held = head["number"], lines[: head["commits"]], lines[head["commits"] :]
        files = self.files[max(generation for generation in self.files if generation <= number)]

        def places(lines: list[dict[str, Any]]) -> set[tuple[str, str]]:
            return {
                (line["job_id"], f"{root}{name}".rstrip("/")) for line in lines for name in line["partitions"]
            }

        def of_jobs(keys: Callable[[Files], Iterable[str]]) -> set[tuple[str, str]]:
            return {(job, partition(key)) for job, added in self.by_job.items() for key in keys(added)}

        # A key that adopted jobs share may be either's.
        surely = of_jobs(lambda added: (key for key in added if files.get(key) == added[key]))
        assert surely <= places(live) <= of_jobs(files.keys().__and__), "checkpoint_is_not_the_fold"
        removed = {f"{root}{name}".rstrip("/") for name in head["removed"]}
        older = {key for key in self.files[0] if head["baseline"] and partition(key) not in removed}
        # A baseline that was closed has its files in a list, like a job's.
        kept = {key for key, etag in self.files[0].items() if files.get(key) == etag}.difference(
            *self.by_job.values()
        )
        assert kept <= older <= kept | files.keys(), "checkpoint_is_not_the_fold"
        for generation in self.files:
            retained = {key for key, by in self.retained_at[number].items() if by == generation}
            theirs = [line for line in held if line["removed"] == generation and not line.get("released")]
            assert places(theirs) == of_jobs(retained.intersection), "checkpoint_is_not_the_fold"

    def _release(self, commits: list[int]) -> None:
        released = {key for key, by in self.retained.items() if by in commits}
        for key in released:
            del self.retained[key]
        self.released |= released

    def _roll_back(self, entry: dict[str, Any]) -> None:
        home = entry["destination"].removeprefix("s3://").partition("/")[2]
        touched = {home + name for name in entry["manifest"]["partitions"]}
        back: Files = {}
        for commit in entry["restores"]:
            listed = (
                _within(self._manifests[commit["number"]])
                if commit.get("within")
                else self._read(f"{home}_s3commit/manifests/{commit['job_id']}.jsonl")
            )
            assert hashlib.sha256(listed).hexdigest() == commit["files_sha256"], "the list is another"
            names = {home + name for name in commit["partitions"]}
            files = {line["key"]: line["etag"] for line in map(json.loads, listed.splitlines())}
            back |= {key: etag for key, etag in files.items() if partition(key) in names}
        assert not back.keys() & self.released, "released_file_referenced"
        for key in back.keys() & self.retained.keys():
            del self.retained[key]
        self.brought_back[self.head] = back.keys() - self.data.keys()
        self.files[self.head] = {
            key: etag for key, etag in self.data.items() if partition(key) not in touched
        } | back
        meant = self.files[entry["manifest"]["rolled_back_to"]]
        assert self.data == meant, "the rollback is to another generation"

    def _listed(self, manifest: dict[str, Any]) -> Files:
        key = manifest["files"].removeprefix("s3://").partition("/")[2]
        listed = _within(manifest) if "within" in manifest else self._read(key)
        assert hashlib.sha256(listed).hexdigest() == manifest["files_sha256"], "the entry's list is another"
        return {line["key"]: line["etag"] for line in map(json.loads, listed.splitlines())}

    def _commit(self, job: str, manifest: dict[str, Any]) -> None:
        added = self._listed(manifest)
        touched = set(map(partition, added))
        older = {
            key for key in self.data if manifest["committer"] == "directory" or partition(key) in touched
        }
        assert manifest["conflict_mode"] != "fail" or not older, f"job {job} in mode fail is beside data"
        kept = self.data
        if manifest["conflict_mode"] == "replace":
            kept = {key: etag for key, etag in kept.items() if key not in older}
        self.by_job[job] = added
        self.files[self.head] = kept | added


def _within(manifest: dict[str, Any]) -> bytes:
    """Return the list of files that lies within a manifest, as its digest takes it: one line each."""
    lines = (
        json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in manifest["within"]
    )
    return "".join(lines).encode()
