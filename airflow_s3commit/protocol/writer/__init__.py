"""A task attempt: files uploaded as multipart uploads that nobody completes."""
