"""Jobs of Hadoop's S3A committers: their files and their status."""
