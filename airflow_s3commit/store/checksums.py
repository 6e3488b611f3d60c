"""Checksums of parts, which a store verifies when it takes them.

Over TLS a body is not hashed for the signature; TLS protects it on the way, but not in a proxy that ends it,
nor in memory. A checksum in a header of each part does, for a few percent of the time that hashing takes.
The object's own checksum is then a full one, worked out by the store: it is the only kind under which an
upload can be completed by somebody who knows nothing of its parts but their ETags.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PartChecksum", "best_checksum"]


@dataclass(frozen=True, slots=True)
class PartChecksum:
    """A kind of checksum.

    Attributes:
        algorithm: S3's name of it.
        size: Its length in bytes.
        of: Works it out.

    """

    algorithm: str
    size: int
    of: Callable[[Any], int]

    @property
    def parameter(self) -> str:
        """The parameter of a request that holds it."""
        return f"Checksum{self.algorithm}"

    def text(self, body: bytes | bytearray | memoryview) -> str:
        """Return the checksum of a part as S3 writes it."""
        return base64.b64encode(self.of(body).to_bytes(self.size, "big")).decode()


def best_checksum() -> PartChecksum:
    """Return CRC-64/NVME where the AWS common runtime is installed, CRC-32 where Python is on its own."""
    try:
        from awscrt.checksums import crc64nvme  # noqa: PLC0415 - optional
    except ImportError:
        return PartChecksum("CRC32", 4, zlib.crc32)
    return PartChecksum("CRC64NVME", 8, crc64nvme)
