"""A store that holds the protocol to its invariants after every effect on it.

They are those of the model (docs/explanation/model.md), under its names where it has them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from airflow_s3commit import MemoryStore
from airflow_s3commit.store.base import Call, Outcome
from airflow_s3commit.store.execute import one_by_one
from airflow_s3commit.store.forwarding import ForwardingStore
from tests.crash.commuting import is_seen
from tests.history import Files, History, is_data

T = TypeVar("T")


class Observed(ForwardingStore):
    """Forwards to a store in memory, and fails at the effect that breaks a rule.

    Args:
        inner: The store. It is looked into, because a request for each rule would take longer than the
            protocol.
        bucket: The bucket of the destination.
        root: The destination's prefix.
        before: The data that was there before the log.

    """

    def __init__(
        self,
        inner: MemoryStore,
        bucket: str,
        root: str,
        before: Mapping[str, str],
    ) -> None:
        super().__init__(inner)
        self._root = root
        self._log, self._success = f"{root}_s3commit/log/", f"{root}_SUCCESS"
        self._checkpoints = f"{root}_s3commit/checkpoints/"
        self._manifests = f"{root}_s3commit/manifests/"
        self._home = inner._buckets[bucket]
        self.now = inner._now
        self.history = History(before, lambda key: self._home.objects[key].body)
        self.history.fold(key for key in self._home.objects if key.startswith(self._log))
        self._read: tuple[object, int | None] = (None, None)
        self._highest = self._marked() or 0

    def perform(self, calls: Iterable[tuple[T, Call]]) -> Iterator[tuple[T, Outcome]]:
        """Make the calls one by one."""
        return one_by_one(self, calls)

    def forward(self, verb: str, bucket: str, key: str, make: Callable[[], T]) -> T:
        """Make a call, and look at what it did."""
        made = make()
        if verb == "delete_many" or is_seen(verb, (key,)):
            if verb == "put" and key.startswith(self._log):
                self.history.take(self._home.objects[key].body)
            if verb == "put" and key.startswith(self._checkpoints):
                self.history.check_checkpoint(gzip.decompress(self._home.objects[key].body), self._root)
            self._check_data()
            self._check_marker()
        return made

    def at_rest(self, *, lists: bool = True) -> None:
        """Check what holds when every job has ended and no process is at work.

        Args:
            lists: Whether no list of files may be left that no entry names: a process that dies between its
                list and its entry leaves one.

        """
        retained = self.history.retained.keys()
        assert self.data().keys() == self.history.data.keys() | retained, "objects_are_not_the_snapshot"
        assert self.data().items() >= self.history.data.items(), "objects_are_not_the_snapshot"
        if self.history.newest:
            assert self._marked() == self.history.newest, "marker_not_newest"
        found = {key for key in self._home.objects if key.startswith(self._manifests) and key[-1] == "l"}
        assert self.history.lists <= found, "list_missing"
        assert not lists or found == self.history.lists, "list_left"
        for upload in self._home.uploads.values():
            assert not any(job in upload.key for job in self.history.ended), "upload_pending_at_rest"

    def data(self) -> Files:
        """Return the destination's data as a listing shows it."""
        return {
            key: stored.info.etag
            for key, stored in self._home.objects.items()
            if key.startswith(self._root) and is_data(key.removeprefix(self._root))
        }

    def _check_data(self) -> None:
        assert self.history.data.keys() <= self._home.objects.keys(), "snapshot_file_missing"
        assert self.history.retained.keys() <= self._home.objects.keys(), "deleted_unreleased"

    def _check_marker(self) -> None:
        """Check what ``_SUCCESS`` names: beside a running job a slow one may name its own generation."""
        marked = self._marked()
        if marked is None:
            return
        objects, files = self._home.objects.keys(), self.history.files
        assert marked in files, "the marker names no commit"
        before = files[max(number for number in files if number < marked)]
        # Files that a later rollback restored are for a later commit to delete.
        back = (keys for number, keys in self.history.brought_back.items() if number > marked)
        kept = self.history.released.union(self.history.retained, *back)
        assert not objects & (before.keys() - files[marked].keys() - kept), "marker_before_removal"
        if marked < self._highest:
            assert self._is_somebody_at_work(), "marker_goes_back"
        if not files[marked].keys() <= objects:
            assert self._is_somebody_at_work(), "marker_names_removed_data"
        self._highest = max(self._highest, marked)

    def _marked(self) -> int | None:
        """Return the generation that the marker names; None if it is missing or another program's."""
        marker = self._home.objects.get(self._success)
        if marker is None:
            return None
        if self._read[0] is not marker:
            number = json.loads(marker.body).get("diagnostics", {}).get("s3commit.generation")
            self._read = (marker, int(number) if number is not None else None)
        return self._read[1]

    def _is_somebody_at_work(self) -> bool:
        states = (
            stored.body
            for key, stored in self._home.objects.items()
            if key.startswith(f"{self._root}__magic_job-") and key.endswith("/state.json")
        )
        return any(json.loads(body)["state"] in ("committing", "committed", "aborting") for body in states)
