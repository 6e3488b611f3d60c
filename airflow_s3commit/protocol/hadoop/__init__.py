"""Jobs of Hadoop's S3A committers: their files, their status, and their adoption."""
