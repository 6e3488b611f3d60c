"""A store that holds the protocol to its rules after every effect on it.

They are those of the model (docs/explanation/model.md), under its names where it has them, and are read off
the bytes: they share no code with the steps.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar
from urllib.parse import unquote

from airflow_s3commit import MemoryStore
from airflow_s3commit.store.base import Call, DeleteFailure, ObjectToDelete, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from tests.history import Files, History, is_data

T = TypeVar("T")

_EFFECTS = frozenset({"put", "delete", "delete_many", "complete_upload", "abort_upload"})

_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Observed(ForwardingStore):
    """Forwards to a store in memory, and fails at the effect that breaks a rule.

    Args:
        inner: The store. It is looked into, because a request for each rule would take longer than the
            protocol.
        bucket: The bucket of the destination.
        root: The destination's prefix.
        named: The jobs of keys that do not have a job's id.
    """

    def __init__(
        self, inner: MemoryStore, bucket: str, root: str, named: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(inner)
        self._root, self._named = root, named or {}
        self._log, self._success = f"{root}_s3commit/log/", f"{root}_SUCCESS"
        self._open, self._receipts = f"{root}_s3commit/open/", f"{root}_s3commit/jobs/"
        self._checkpoints, self._lists = f"{root}_s3commit/checkpoints/", f"{root}_s3commit/lists/"
        self._home = inner._buckets[bucket]
        self.history = History(lambda key: self._home.objects[key].body)
        self.history.fold(key for key in self._home.objects if key.startswith(self._log))
        #: Whether a task attempt may withdraw what it wrote because a request of its own failed.
        self.attempts_fail = False
        #: The keys in the table at each version of the Delta table.
        self.versions: list[set[str]] = []
        self._versions = f"{root}_delta_log/"
        for key in sorted(key for key in self._home.objects if key.startswith(self._versions)):
            self._take_version(key)
        self._read: tuple[object, int | None] = (None, None)
        self._highest = self._marked() or 0

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)

    def delete_many(self, bucket: str, objects: Sequence[ObjectToDelete]) -> list[DeleteFailure]:
        """Delete one by one, so that each deletion is held to the rules."""
        return MemoryStore.delete_many(self, bucket, objects)  # type: ignore[arg-type]  # it has `delete`

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, and look at what it did."""
        if verb == "abort_upload":
            self._check_owner(key)
        before = self._home.objects.get(key)
        made = make()
        if verb in _EFFECTS:
            after = self._home.objects.get(key)
            if verb == "put":
                self._take(key)
                if key.startswith(self._versions) and before is None:
                    self._take_version(key)
            if before is not None and after is not before:
                self._check_change(key, gone=after is None)
            self._check_data()
            self._check_marker()
        return made

    def at_rest(self, *, lists: bool = True, others: Collection[str] = ()) -> None:
        """Check what holds when every job has ended and no process is at work.

        Args:
            others: What other programs have put there.
            lists: Whether no list of files may be left that no entry names: a process that dies between its
                list and its entry leaves one.
        """
        history, objects = self.history, self._home.objects
        known = {*history.data, *history.retained, *others}
        assert self.data().keys() == known, "objects_are_not_the_table"
        assert self.data().items() >= history.data.items(), "objects_are_not_the_table"
        assert (self._marked() or 0) == max(self._generations(), default=0), "marker_not_newest"
        found = {key for key in objects if key.startswith(self._lists)}
        assert not self.published or len(self.versions) == history.head - self.published + 1, (
            "version_missing"
        )
        assert history.lists <= found, "list_missing"
        assert not lists or found == history.lists, "list_left"
        for job, number in history.ends.items():
            assert self._receipt(job) == history.bodies[number], "receipt_missing"
            mine = [key for key in objects if job in key and not key.startswith(self._receipts)]
            assert not [key for key in mine if "/__magic_job-" in key or key.startswith(self._open)], mine
            assert not [one for one in self._home.uploads.values() if job in one.key], "upload_left"

    @property
    def published(self) -> int:
        """The number of the first entry that is published, by the newest; 0 without one."""
        body = self.history.bodies.get(self.history.head, b"{}")
        return int(json.loads(body).get("published", 0))

    def data(self) -> Files:
        """Return the destination's data as a listing shows it."""
        return {
            key: stored.info.etag
            for key, stored in self._home.objects.items()
            if key.startswith(self._root) and is_data(key.removeprefix(self._root))
        }

    def _take(self, key: str) -> None:
        """Look at a new entry of the log, or a new checkpoint."""
        history = self.history
        if key.startswith(self._log) and self.published:
            assert len(self.versions) == history.head - self.published + 1, "version_missing"
        if key.startswith(self._checkpoints):
            history.check_checkpoint(gzip.decompress(self._home.objects[key].body), self._root)
        if not key.startswith(self._log):
            return
        history.take(self._home.objects[key].body)
        if history.head == 1:
            older = {key: etag for key, etag in self.data().items() if key not in self._named}
            assert history.data == older, "the first entry lists what is there"
        # Only the newest entry may lack its receipt.
        for job, number in history.ends.items():
            assert number == history.head or self._receipt(job) == history.bodies[number], "receipt_missing"

    def _take_version(self, key: str) -> None:
        """Look at a new version: it is of an entry, the next one, and adds up to the table after that."""
        history, body = self.history, self._home.objects[key].body
        actions = [json.loads(line) for line in body.splitlines()]
        origin = actions[0]["commitInfo"]["s3commit"]
        entry = json.loads(history.bodies.get(origin["generation"], b"{}"))
        assert entry.get("nonce") == origin["nonce"], "version_without_entry"
        assert key == f"{self._versions}{len(self.versions):020}.json", "version_skipped"
        assert entry["number"] - entry["published"] == len(self.versions), "version_of_another_entry"
        gone = {self._key_of(action["remove"]) for action in actions if "remove" in action}
        added = {self._key_of(action["add"]) for action in actions if "add" in action}
        before = self.versions[-1] if self.versions else set()
        assert gone <= before, "version_does_not_follow"
        assert not added & before, "version_does_not_follow"
        self.versions.append(before - gone | added)
        generation = max(one for one in history.files if one <= entry["number"])
        assert self.versions[-1] == history.files[generation].keys(), "version_is_not_the_table"

    def _key_of(self, action: dict[str, str]) -> str:
        return self._root + unquote(action["path"])

    def _check_change(self, key: str, *, gone: bool) -> None:
        """Check that an object may be deleted, or written over."""
        assert not key.startswith((self._log, self._receipts)), "what is never deleted, or changed"
        assert key != self._success or not gone, "the marker is deleted"
        if not gone:
            return
        self._check_owner(key)
        job = next(iter(_JOB.findall(key)), None)
        if key == f"{self._open}{job}/job.json":
            self._check_finished(str(job))

    def _check_owner(self, key: str) -> None:
        """Check that the job whose upload or object goes has ended, or another one took that from the table.

        Probes of a store are the process's own. What no job wrote may go if a commit took it.
        """
        if key.startswith(f"{self._root}_s3commit/probe-"):
            return
        for job in self._jobs(key):
            assert self.attempts_fail or job in self.history.ended, f"living_job_harmed: {key}"
        if is_data(key.removeprefix(self._root)) and not self._jobs(key):
            assert key in set().union(*self.history.taken.values()), f"foreign_object_deleted: {key}"

    def _check_finished(self, job: str) -> None:
        """Check what must be done when a job's record goes, because nobody would find it any more."""
        history, number = self.history, self.history.ends[job]
        assert self._receipt(job) == history.bodies[number], "receipt_missing"
        assert f"{self._open}{job}/sealed.json" not in self._home.objects, "seal_left"
        if history.ended[job] == "commit":
            assert self._highest >= number, "marker_not_written"
            assert not self._left_of(number), "removal_left"
        else:
            others = self.data().keys() - history.data.keys()
            assert not any(job in self._jobs(key) for key in others), "object_left"

    def _jobs(self, key: str) -> list[str]:
        """Return the jobs whose ids a key has, or whose file it is."""
        return _JOB.findall(key) or [job for job in [self._named.get(key)] if job]

    def _left_of(self, number: int) -> set[str]:
        """Return what a commit took and is to be deleted, and is there.

        Not what a later one brought back; nor what it took, as it can only where another program has written
        over the object: that one is its own to delete.
        """
        history = self.history
        moved = (*history.brought_back.items(), *history.taken.items())
        later = (keys for generation, keys in moved if generation > number)
        kept = history.data.keys() | history.released.union(history.retained, *later)
        return {key for key in history.taken[number] - kept if key in self._home.objects}

    def _check_data(self) -> None:
        assert self.history.data.keys() <= self._home.objects.keys(), "table_file_missing"
        assert not self.versions or self.versions[-1] <= self._home.objects.keys(), "published_file_missing"
        assert self.history.retained.keys() <= self._home.objects.keys(), "deleted_unreleased"

    def _check_marker(self) -> None:
        """Check what ``_SUCCESS`` names: it goes forward, and it comes after what its commit removes."""
        marked = self._marked()
        if marked is None:
            return
        assert marked >= self._highest, "marker_goes_back"
        assert marked in self._generations(), "the marker names no commit of a job"
        assert not self._left_of(marked), "marker_before_removal"
        self._highest = marked

    def _marked(self) -> int | None:
        """Return the generation that the marker names; None if it is missing or another program's."""
        marker = self._home.objects.get(self._success)
        if marker is None:
            return None
        if self._read[0] is not marker:
            number = json.loads(marker.body).get("diagnostics", {}).get("s3commit.generation")
            self._read = (marker, int(number) if number is not None else None)
        return self._read[1]

    def _generations(self) -> set[int]:
        """Return the generations that jobs committed; the first entry lists what is older."""
        return {self.history.ends[job] for job in self.history.by_job}

    def _receipt(self, job: str) -> bytes | None:
        stored = self._home.objects.get(f"{self._receipts}{job}.json")
        return stored.body if stored is not None else None
