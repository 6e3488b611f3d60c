"""Digests: short ones for texts in memory and in keys, and SHA-256 for the contents of objects."""

from __future__ import annotations

import hashlib

#: Bytes of a short digest, enough to be unique within a job.
DIGEST_BYTES = 16


def bytes_digest(content: bytes) -> bytes:
    """Return the short digest of a content."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def text_digest(text: str) -> bytes:
    """Return the short digest of a text, such as a key."""
    return bytes_digest(text.encode())


def upload_digest(key: str, upload_id: str) -> bytes:
    """Return the short digest of an upload."""
    return text_digest(f"{key}\0{upload_id}")


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content in hexadecimal, as records name it."""
    return hashlib.sha256(content).hexdigest()
