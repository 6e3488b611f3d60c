"""The fast path: thousands of small S3 requests from one thread, through libcurl."""
