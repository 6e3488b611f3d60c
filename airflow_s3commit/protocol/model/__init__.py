"""What lies on S3, as values: records, pendingsets, keys, limits and ownership. Reads and writes nothing."""
