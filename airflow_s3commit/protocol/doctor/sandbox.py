"""What probes are, what they find, and the directory that they work in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit._causes import run_all
from airflow_s3commit._clock import Clock
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.ownership import JOB_METADATA, UPLOAD_METADATA
from airflow_s3commit.store.base import ObjectStore

Verdict: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

#: Content of the probes' objects and parts.
BODY = b"s3commit doctor"

#: Metadata of the probes' uploads.
METADATA = {JOB_METADATA: "doctor", UPLOAD_METADATA: "Examined 1"}


class Finding(NamedTuple):
    """The result of a probe: see the fields of the same names of `Check`."""

    verdict: Verdict
    says: str
    remedy: str | None = None


@dataclass
class Sandbox:
    """A directory for the objects and uploads of probes, which it can remove again.

    Attributes:
        store: The store.
        destination: The destination, or staging root, to check.
        home: The directory of the probes' objects, hidden from readers.
        clock: Source of this machine's time.
        rehearsed: Whether jobs ran in it, whose objects and uploads have names of their own.

    """

    store: ObjectStore
    destination: Destination
    home: Destination
    clock: Clock
    rehearsed: bool = False
    _keys: set[str] = field(default_factory=set)

    @property
    def bucket(self) -> str:
        """The bucket of the probes' objects."""
        return self.home.bucket

    def key(self, name: str) -> str:
        """Return a key, and note it for `clear`. Call this before an object or an upload has it."""
        key = self.home.key(name)
        self._keys.add(key)
        return key

    def put(self, name: str) -> tuple[str, str]:
        """Write an object, over an existing one too; return its key and ETag."""
        key = self.key(name)
        return key, self.store.put(self.bucket, key, BODY).etag

    def begin(self, name: str, headers: dict[str, str] | None = None) -> tuple[str, str]:
        """Start an upload; return its key and id. For the headers see `ObjectStore.create_upload`."""
        key = self.key(name)
        return key, self.store.create_upload(
            self.bucket, key, metadata=METADATA, content_type="application/octet-stream", headers=headers
        )

    def send(self, key: str, upload_id: str, *parts: bytes) -> list[str]:
        """Send the parts of an upload; return their ETags."""
        return [
            self.store.upload_part(self.bucket, key, upload_id, number, part)
            for number, part in enumerate(parts, start=1)
        ]

    def clear(self) -> None:
        """Abort every upload and delete every object that probes may have created. Repeatable.

        Raises:
            S3CommitError: Something could not be removed. Everything else was tried.

        """
        # By the exact keys: some stores list uploads only that way.
        steps: list[Callable[[], object]] = [partial(self._abort, key) for key in sorted(self._keys)]
        if self.rehearsed:
            steps += [partial(self._abort, None), self._delete_listed]
        self._run([*steps, *self._deletes(self._keys)])

    def _abort(self, key: str | None) -> None:
        """Abort the uploads of a key; None aborts all."""
        for upload in list(self.store.list_uploads(self.bucket, key or self.home.prefix)):
            if key in (None, upload.key):
                self.store.abort_upload(self.bucket, upload.key, upload.upload_id)

    def _delete_listed(self) -> None:
        self._run(self._deletes(one.key for one in self.store.list_objects(self.bucket, self.home.prefix)))

    def _deletes(self, keys: Iterable[str]) -> list[Callable[[], object]]:
        return [partial(self.store.delete, self.bucket, key) for key in sorted(keys)]

    def _run(self, steps: Iterable[Callable[[], object]]) -> None:
        run_all(steps, f"removing a probe below {self.home.uri}", "it may be left")


@dataclass(frozen=True, slots=True)
class Probe:
    """A named probe.

    Attributes:
        name: Name of its check.
        run: Performs it.
        needs: Names of the probes that must succeed before this one can run.

    """

    name: str
    run: Callable[[Sandbox], Finding]
    needs: tuple[str, ...] = ()
