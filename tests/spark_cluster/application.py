"""A Spark application that follows orders on standard input, and answers on standard output.

Run as ``python -m tests.spark_cluster.application``; the first line has the session's conf, each further one
names a function of `tests.spark_cluster.work` and its arguments. It ends when standard input does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from tests.spark_cluster import work


def main() -> None:
    """Serve until there is nothing more to do."""
    answers = os.fdopen(os.dup(1), "w")
    # Spark and its programs print what they like.
    os.dup2(2, 1)
    conf = json.loads(sys.stdin.readline())["conf"]
    session = SparkSession.builder.appName("spark_cluster").config(map=conf).getOrCreate()
    for line in sys.stdin:
        told = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"result": getattr(work, told["function"])(session, **told["arguments"])}
        except Exception as error:  # any error is the answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    session.stop()


if __name__ == "__main__":
    main()
