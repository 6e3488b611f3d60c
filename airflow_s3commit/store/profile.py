"""What a bucket does with the requests on which suitable stores differ."""

from __future__ import annotations

from msgspec import Struct


class StoreProfile(Struct, frozen=True, kw_only=True):
    """What a bucket does with the requests on which suitable stores differ.

    A store object learns it from responses, and keeps it for itself. Nothing depends on a vendor's name.

    Attributes:
        bare_etags: ``If-Match`` is compared with the ETag without quotes, so the quoted one is refused; None
            if no such write has succeeded yet.
        conditional_delete: A delete with ``If-Match`` is refused if the object has another ETag; None if that
            is not known: then the ETag is also compared right before the delete.
        bulk_etags: A bulk delete leaves objects with another ETag.
        upload_markers: A listing of pending uploads continues at the markers that its last page named;
            otherwise at the last key.
    """

    bare_etags: bool | None = None
    conditional_delete: bool | None = None
    bulk_etags: bool = True
    upload_markers: bool = True
