"""Whether a store, a bucket and these credentials can carry the protocol."""
