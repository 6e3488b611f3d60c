"""``make stack`` and ``make stack-docker``: Airflow, Spark and S3, on loopback or in containers."""
