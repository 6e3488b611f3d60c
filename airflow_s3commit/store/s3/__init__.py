"""S3 through boto3, which can make every call, and through libcurl (`fast_path`) for many small ones."""
