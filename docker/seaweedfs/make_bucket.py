"""Make a bucket, if it is not there, and wait until the server really takes objects.

Unfinished uploads that nothing refers to any more are to be aborted after a week, as in any bucket that
pending uploads are written to.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import LifecycleRuleTypeDef

#: Seconds until the server must take objects. It makes room for them when the first one comes.
READY_SECONDS = 90.0

UNFINISHED: LifecycleRuleTypeDef = {
    "ID": "abort-unfinished-uploads",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
}


def main(bucket: str) -> int:
    """Make the bucket and return 0, or say why not and return 1."""
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}))
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            if bucket not in {found["Name"] for found in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=bucket)
            client.put_bucket_lifecycle_configuration(
                Bucket=bucket, LifecycleConfiguration={"Rules": [UNFINISHED]}
            )
            client.put_object(Bucket=bucket, Key=".ready", Body=b"")
            client.delete_object(Bucket=bucket, Key=".ready")
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                print(f"bucket {bucket} cannot be made ready: {error}", file=sys.stderr)
                return 1
            time.sleep(0.5)
        else:
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
