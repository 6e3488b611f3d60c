"""Adoption of jobs of Hadoop's S3A committers: commit or abort them as jobs of this package."""
