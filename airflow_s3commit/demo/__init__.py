"""The embedded stack behind ``make demo``: an S3 server, an Airflow and a Spark of one's own, on loopback."""
