"""Watching a dataset from outside, as a reader would: what is pending, and what is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from airflow_s3commit.protocol.model.destination import is_hidden
from dev.background import Background

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.store.base import ObjectStore

#: Seconds between two looks. A listing of a small dataset takes a few milliseconds.
INTERVAL = 0.2


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look at a dataset found.

    Attributes:
        pending: Keys of its pending uploads; a key once per upload.
        visible: Keys of the data files that a reader sees: without the hidden ones below ``_`` and ``.``.
    """

    pending: tuple[str, ...]
    visible: frozenset[str]


class DatasetWatch(Background):
    """Looks at a dataset repeatedly, from a thread, during a ``with`` block.

    Args:
        destination: The dataset.
        on_change: Called from that thread with each sight that differs from the one before.

    Attributes:
        sights: The first sight and every one that differed from the one before, oldest first.
    """

    def __init__(
        self, store: ObjectStore, destination: Destination, on_change: Callable[[Sight], None] | None = None
    ) -> None:
        super().__init__()
        self._store = store
        self._destination = destination
        self._on_change = on_change
        self.sights: list[Sight] = []

    def __enter__(self) -> Self:
        self.sights.append(self.look())
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self._note(self.look())

    def run(self) -> None:
        """Look again and again until the block ends."""
        while not self._over.wait(INTERVAL):
            self._note(self.look())

    def look(self) -> Sight:
        """Return what exists now.

        The uploads are listed before the objects, so a file that is completed between the two counts as both
        rather than as neither.
        """
        bucket, prefix = self._destination.bucket, self._destination.prefix
        pending = sorted(upload.key for upload in self._store.list_uploads(bucket, prefix))
        visible = frozenset(
            found.key
            for found in self._store.list_objects(bucket, prefix)
            if (relative := self._destination.relative(found.key)) is not None and not is_hidden(relative)
        )
        return Sight(tuple(pending), visible)

    def last_before_change(self) -> Sight:
        """Return the last sight in which readers still saw the initial data."""
        first = self.sights[0].visible
        unchanged = self.sights[0]
        for sight in self.sights:
            if sight.visible != first:
                break
            unchanged = sight
        return unchanged

    def most_pending(self) -> Sight:
        """Return the sight with the most pending uploads."""
        return max(self.sights, key=lambda sight: len(sight.pending))

    def _note(self, sight: Sight) -> None:
        if sight != self.sights[-1]:
            self.sights.append(sight)
            if self._on_change is not None:
                self._on_change(sight)
