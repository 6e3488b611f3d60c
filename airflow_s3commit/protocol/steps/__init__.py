"""The steps of a job on a log that alone decides how the job ended: one module for each step."""
