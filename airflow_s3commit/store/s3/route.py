"""Where requests go, and how they are signed: with version 4, to the byte as botocore signs.

A client prepares one request for each bucket and operation, which is not sent. It knows endpoint rules,
addressing style, redirects and headers that its owner added. Every further request differs only in key,
upload and body. For signatures see
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
"""

from __future__ import annotations

import hmac
import re
from functools import lru_cache
from hashlib import sha256
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

from botocore import xform_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from botocore.awsrequest import AWSRequest
    from botocore.credentials import ReadOnlyCredentials as Credentials
    from mypy_boto3_s3.client import S3Client

    from airflow_s3commit.store.base import Abort, Complete, Get, Head
    from airflow_s3commit.store.s3.request import Request

#: The key of the prepared request, and no other's; the URL of other requests is the same before it.
_KEY = f"s3commit-address-{uuid4().hex}"

# Headers of one attempt or body, which are not kept.
_is_passing = re.compile("amz-sdk-|content-|expect|user-agent|x-amz-(?:sdk-)?checksum-|x-amzn-trace-id").match

# Headers that libcurl sends as they are, as it does one with a value, and that are signed as they are.
_is_plain = re.compile(r"[!-@\[-~]+: [!-~]+(?: [!-~]+)*", re.ASCII).fullmatch

# Quotes a directory; cached, because a job's files are in few.
_quoted_folder = lru_cache(4096)(quote)


class Route:
    """Where and how one operation on one bucket is sent. Its signatures are valid for 15 minutes.

    ``request`` is the client's own. Headers of ``signed``, by name in lower case, are part of signatures; the
    lines of ``unsigned`` are not, nor is a body that TLS protects.
    """

    def __init__(
        self, request: AWSRequest, region: str, keys: Credentials, signed: dict[str, str], unsigned: list[str]
    ) -> None:
        self.method, self.url = request.method, str(request.url).partition(_KEY)[0]
        self._unsigned = unsigned
        address, now = urlsplit(self.url), strftime("%Y%m%dT%H%M%SZ", gmtime())
        self._path, self._is_hashed = address.path, address.scheme != "https"
        self._headers = {**signed, "host": address.netloc, "x-amz-date": now}
        if keys.token:
            self._headers["x-amz-security-token"] = keys.token
        scope = f"{now[:8]}/{region}/s3/aws4_request"
        self._key = f"AWS4{keys.secret_key}".encode()
        for word in scope.split("/"):
            self._key = hmac.digest(self._key, word.encode(), "sha256")
        self._before = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n"
        self._credential = f"Authorization: AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}"

    def header_lines(self, target: str, body: bytes, more: Mapping[str, str]) -> list[str]:
        """Return the headers of one request, the signature among them.

        ``target`` is what `target_of` returns; ``more`` are headers of this request alone.
        """
        key, _, query = target.partition("?")
        parameters = sorted(name if "=" in name else f"{name}=" for name in query.split("&") if name)
        digest = sha256(body).hexdigest() if self._is_hashed else "UNSIGNED-PAYLOAD"
        headers = sorted({**self._headers, **more, "x-amz-content-sha256": digest}.items())
        listed = "".join([f"{name}:{value}\n" for name, value in headers])
        names = ";".join([name for name, _ in headers])
        request = f"{self.method}\n{self._path}{key}\n{'&'.join(parameters)}\n{listed}\n{names}\n{digest}"
        summed = self._before + sha256(request.encode()).hexdigest()
        signature = hmac.digest(self._key, summed.encode(), "sha256").hex()
        authorization = f"{self._credential}, SignedHeaders={names}, Signature={signature}"
        return [*[f"{name}: {value}" for name, value in headers], authorization, *self._unsigned]


def are_plain(headers: Mapping[str, str]) -> bool:
    """Return whether headers can be sent and signed as they are."""
    return all(_is_plain(f"{name}: {value}") for name, value in headers.items())


def target_of(call: Complete | Abort | Head | Get | Request, *query: str) -> str:
    """Return a call's key, and its query if it has one, quoted for a URL; empty if libcurl cannot send it.

    It would resolve dot segments, and a call without a key or an upload is another request on the wire.
    """
    key, upload = call.key or "", getattr(call, "upload_id", None)
    has_dots = "/." in f"/{key}" and not {".", ".."}.isdisjoint(key.split("/"))
    if has_dots or not key or upload == "":
        return ""
    folder, slash, name = key.rpartition("/")
    if upload:
        query = (f"uploadId={quote(upload, safe='')}", *query)
    return f"{_quoted_folder(folder)}{slash}{quote(name)}{'?' if query else ''}{'&'.join(query)}"


class _Prepared(Exception):
    """A request is prepared, and is neither signed nor sent. It comes with what it would be signed with."""


def _intercept(request: AWSRequest, **signing: Any) -> None:
    if _KEY in str(request.url):
        raise _Prepared(request, signing)


def learn_route(client: S3Client, bucket: str, operation: str) -> Route | None:
    """Return the route of an operation on a bucket; None if only the client can send it."""
    meta: Any = client.meta
    meta.events.register_last("before-sign.s3", _intercept, unique_id="s3commit-before-sign")
    taken = meta.service_model.operation_model(operation).input_shape.members
    arguments = {name: value for name, value in (("UploadId", "u"), ("PartNumber", 1)) if name in taken}
    try:
        getattr(client, xform_name(operation))(Bucket=bucket, Key=_KEY, **arguments)
        return None
    except _Prepared as prepared:
        request, given = prepared.args
    except Exception:
        # No credentials, unusable ones, or an invalid name: the client itself reports it.
        return None
    names = [given[name] for name in ("signing_name", "region_name", "signature_version")]
    # What the client learned from a redirect takes precedence over its own region.
    learned = request.context.get("signing") or {}
    service, region = learned.get("signing_name", names[0]), learned.get("region", names[1])
    found = request.headers.items()
    headers = {name.lower(): t.decode("latin-1") if isinstance(t, bytes) else t for name, t in found}
    kept = {name: text for name, text in headers.items() if not _is_passing(name)}
    answers = meta.events.emit(f"before-send.s3.{operation}", request=request.prepare())
    is_stood_in_for = bucket.startswith("arn:") or any(answer is not None for _, answer in answers)
    # Other signatures are for several regions, or of other versions.
    if is_stood_in_for or service != "s3" or names[2] not in {"s3v4", "v4"} or not are_plain(kept):
        return None
    keys = given["request_signer"].get_auth_instance(*names).credentials
    # libcurl adds headers where these are missing, such as the media type of a form.
    unsigned = ["Accept:", "Expect:", f"User-Agent: {headers.get('user-agent', '')}"]
    unsigned += ["Content-Type:"] if operation == "UploadPart" else []
    kept |= {"content-type": "application/xml"} if operation == "CompleteMultipartUpload" else {}
    return Route(request, region, keys, kept, unsigned)
