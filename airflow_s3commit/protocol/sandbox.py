"""A place to try a store out in, and what it means to try one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from airflow_s3commit.causes import run_all
from airflow_s3commit.clock import Clock
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.destination import Destination
from airflow_s3commit.store.base import ObjectStore

__all__ = ["BODY", "Finding", "Probe", "Sandbox", "Verdict"]

Verdict: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

#: What probes write.
BODY = b"s3commit doctor"


class Finding(NamedTuple):
    """What a probe found out, and what to do about it."""

    verdict: Verdict
    says: str
    remedy: str | None = None


@dataclass
class Sandbox:
    """A place where probes make objects and uploads, and from which everything can be removed again.

    Attributes:
        store: The store.
        destination: The destination that is examined.
        home: The directory for the probes' objects, hidden from readers.
        clock: This machine's clock.

    """

    store: ObjectStore
    destination: Destination
    home: Destination
    clock: Clock
    _keys: set[str] = field(default_factory=set)
    _uploads: set[str] = field(default_factory=set)

    @property
    def bucket(self) -> str:
        """The bucket of the probes' objects."""
        return self.home.bucket

    def key(self, name: str) -> str:
        """Return the key of an object that is about to be made."""
        key = self.home.key(name)
        self._keys.add(key)
        return key

    def put(self, name: str, body: bytes = BODY) -> str:
        """Write an object whatever is there, and return its ETag."""
        return self.store.put(self.bucket, self.key(name), body).etag

    def begin(
        self, name: str, metadata: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Begin an upload, whose object has these headers; return its key and id."""
        key = self.key(name)
        self._uploads.add(key)
        return key, self.store.create_upload(
            self.bucket, key, metadata=metadata, content_type="application/octet-stream", headers=headers
        )

    def is_there(self, key: str) -> bool:
        """Tell whether an object is there."""
        try:
            self.store.head(self.bucket, key)
        except NoSuchKey:
            return False
        return True

    def clear(self) -> None:
        """Abort every upload and delete every object that may have been made. Repeatable.

        All are tried before an error is raised.
        """
        steps = [partial(self._remove, key) for key in sorted(self._uploads | self._keys)]
        run_all(steps, f"removing a probe below {self.home.uri}", "it may be left")

    def _remove(self, key: str) -> None:
        if key in self._uploads:
            # By the exact key: some stores list uploads in no other way.
            for upload in list(self.store.list_uploads(self.bucket, key)):
                if upload.key == key:
                    self.store.abort_upload(self.bucket, key, upload.upload_id)
        self.store.delete(self.bucket, key)


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing to try.

    Attributes:
        name: What it is about.
        try_out: Tries it.
        needs: Probes without whose success it makes no sense.

    """

    name: str
    try_out: Callable[[Sandbox], Finding]
    needs: tuple[str, ...] = ()
