"""``make demo``: real flights through Spark, Airflow and an S3 server on loopback, judged at the end."""
