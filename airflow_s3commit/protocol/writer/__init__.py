"""Writes of task attempts: files as multipart uploads, which only the job's commit completes."""
