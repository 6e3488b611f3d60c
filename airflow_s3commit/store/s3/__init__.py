"""S3 through boto3, which can make every call; `curl` is the fast path for many small ones."""
