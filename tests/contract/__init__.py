"""One suite over every store."""
