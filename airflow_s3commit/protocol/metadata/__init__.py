"""A job's records on the store: read, written under conditions, and removed through one gate."""
