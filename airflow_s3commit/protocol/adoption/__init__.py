"""Making a job of Hadoop's S3A committers one of ours, to finish or abort it."""
