"""What a bucket does with the requests on which stores differ."""

from __future__ import annotations

from msgspec import Struct


class StoreProfile(Struct, frozen=True, kw_only=True):
    """What a bucket does with the requests on which stores differ; by default what AWS S3 does.

    A store learns from responses, and follows what was measured before. Nothing depends on its vendor.

    Attributes:
        create_only: A write with ``If-None-Match: *`` is refused if the object exists; of concurrent ones one
            succeeds.
        compare_and_swap: A write with ``If-Match`` is refused if the object has another ETag or is missing,
            and only then; of concurrent ones one succeeds.
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

    @property
    def fences(self) -> bool:
        """Whether conditional writes prevent two committers from succeeding at once."""
        return self.create_only and self.compare_and_swap

    @property
    def losses(self) -> list[str]:
        """Guarantees that jobs lose here, compared with AWS S3, as sentences."""
        found = []
        if not self.create_only:
            found.append(
                "writes with If-None-Match: * are refused, or several of one key succeed, so nothing"
                " prevents two concurrent commits to one destination"
            )
        elif not self.compare_and_swap:
            found.append(
                "writes with If-Match are refused, or several over one ETag succeed, or one of a missing"
                " object does: a record is compared right before it is overwritten, so two processes that"
                " act on one job at the same time may both succeed"
            )
        if not self.conditional_delete:
            found.append(
                "deletes ignore If-Match or are refused with it: an object is compared right before it is"
                " deleted, so a change in between is lost"
            )
        return found
