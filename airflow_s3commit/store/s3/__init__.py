"""S3 through boto3, which can make every call; `fast_path` makes many small ones with libcurl."""
