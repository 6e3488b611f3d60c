"""What a bucket does with the requests on which stores differ."""

from __future__ import annotations

from msgspec import Struct


class StoreProfile(Struct, frozen=True, kw_only=True):
    """What a bucket does with the requests on which stores differ; by default what AWS S3 does.

    A store learns from responses, and follows what was measured before. Nothing depends on its vendor.

    Attributes:
        create_only: A write with ``If-None-Match: *`` is refused if the object exists.
        compare_and_swap: A write with ``If-Match`` is refused if the object has another ETag, and only then.
        bare_etags: ``If-Match`` is compared with the ETag without quotes, so the quoted one is refused.
        conditional_delete: A delete with ``If-Match`` is refused if the object has another ETag.
        bulk_etags: A bulk delete leaves objects with another ETag.
        upload_markers: A listing of pending uploads continues at the markers that its last page named;
            otherwise at the last key.

    """

    create_only: bool = True
    compare_and_swap: bool = True
    bare_etags: bool = False
    conditional_delete: bool = True
    bulk_etags: bool = True
    upload_markers: bool = True
