"""What lets Spark's own tests run through the jar."""
