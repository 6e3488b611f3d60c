"""The demo with a Spark job that knows nothing of this package."""
