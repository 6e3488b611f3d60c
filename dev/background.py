"""Work that runs in a thread during a ``with`` block."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Background(ABC):
    """Calls `run` in a thread on entry, and waits for its end on exit, where its error is raised."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=type(self).__name__, daemon=True)
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    @abstractmethod
    def run(self) -> None:
        """Work until the block ends, when ``self._over`` is set."""

    def _keep(self) -> None:
        try:
            self.run()
        except Exception as error:
            self._error = error
