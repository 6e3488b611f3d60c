"""Check whether a store, a bucket and credentials support the protocol."""
