"""Tests of the seam to S3."""
