"""A session's S3A settings of how objects are stored: a write adopts them, or is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.protocol.model.object_options import ObjectOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_s3commit.spark.session import ConfGet

_ALGORITHM = ("encryption.algorithm", "server-side-encryption-algorithm")
_KEY = ("encryption.key", "server-side-encryption.key")
_CONTEXT = ("encryption.context",)
_STORAGE_CLASS = ("create.storage.class",)
_ACL = ("acl.default",)

#: Hadoop's names of server-side encryption, and S3's.
_ENCRYPTION = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}

_PREFIX = "fs.s3a."


@dataclass(frozen=True, slots=True)
class S3ASettings:
    """S3A's settings for one bucket, as Hadoop spells them; None where the session says nothing.

    Attributes:
        algorithm: How objects are encrypted.
        key: The KMS key.
        context: The encryption context.
        storage_class: The storage class.
        acl: The canned ACL.

    """

    algorithm: str | None = None
    key: str | None = None
    context: str | None = None
    storage_class: str | None = None
    acl: str | None = None

    def fill(self, said: ObjectOptions) -> ObjectOptions:
        """Return options with the session's settings where the options say nothing.

        Raises:
            InvalidOption: The session asks for something that this package cannot do, or S3 does not know.

        """
        fields: dict[str, Any] = {}
        if said.sse is None and self.algorithm is not None:
            fields |= self._encryption()
        if said.storage_class is None and self.storage_class is not None:
            fields["storage_class"] = self.storage_class.upper().replace("-", "_")
        if said.acl is None and self.acl is not None:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.acl)
            fields["acl"] = words.lower().replace("_", "-")
        try:
            return msgspec.structs.replace(said, **fields)
        except InvalidOption as error:
            raise InvalidOption(f"{_PREFIX}* of the session: {error}") from error

    def _encryption(self) -> dict[str, Any]:
        sse = _ENCRYPTION.get(str(self.algorithm).upper())
        if sse is None or self.context is not None:
            name = _ALGORITHM[0] if sse is None else _CONTEXT[0]
            value = self.algorithm if sse is None else self.context
            raise InvalidOption(
                f"the session encrypts with {_PREFIX}{name}={value}, which s3commit cannot do; it knows"
                f" {', '.join(_ENCRYPTION)}, without a context. Say how this write encrypts, by the option"
                " sse or by its job's object_options"
            )
        return {"sse": sse, "sse_kms_key_id": self.key if sse.startswith("aws:kms") else None}


def s3a_settings(get: ConfGet, bucket: str) -> S3ASettings:
    """Return a conf's S3A settings for a bucket; settings of this bucket override those of all buckets."""

    def found(names: tuple[str, ...]) -> str | None:
        spellings = [f"{scope}{name}" for scope in (f"bucket.{bucket}.", "") for name in names]
        keys = (f"{start}{_PREFIX}{rest}" for rest in spellings for start in ("", "spark.hadoop."))
        return next((value for key in keys if (value := (get(key) or "").strip())), None)

    return S3ASettings(found(_ALGORITHM), found(_KEY), found(_CONTEXT), found(_STORAGE_CLASS), found(_ACL))


def conf_of(session: Any) -> ConfGet:
    """Return a getter of a session's conf, and of S3A's settings in its Hadoop configuration."""
    hadoop = hadoop_conf(session)
    return lambda key: session.conf.get(key, None) or hadoop.get(key)


def hadoop_conf(session: Any) -> dict[str, str]:
    """Return the S3A settings of a session's Hadoop configuration, its files included.

    Empty in Spark Connect, whose client does not see it.
    """
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return {}
    conf = java.sessionState().newHadoopConf()
    names = (*_ALGORITHM, *_KEY, *_CONTEXT, *_STORAGE_CLASS, *_ACL)
    found = {f"{_PREFIX}{name}": conf.get(f"{_PREFIX}{name}") for name in names}
    return {key: value for key, value in (*found.items(), *_of_buckets(conf, names)) if value}


def _of_buckets(conf: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    prefix = f"{_PREFIX}bucket."
    for rest, value in dict(conf.getPropsWithPrefix(prefix)).items():
        if str(rest).endswith(tuple(f".{name}" for name in names)):
            yield f"{prefix}{rest}", str(value)
