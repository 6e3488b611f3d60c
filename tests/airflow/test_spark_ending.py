"""What ended a Spark application, by what spark-submit prints."""

from __future__ import annotations

import pytest

from airflow_s3commit.operators.spark_ending import SparkEnding

PYTHON = """
26/11/26 06:00:00 INFO SparkContext: Running Spark version 4.1.1
Traceback (most recent call last):
  File "/jobs/flights.py", line 9, in <module>
    main()
ValueError: no flights on 2014-01-01
26/11/26 06:00:01 INFO ShutdownHookManager: Shutdown hook called
"""

TASK = """
26/11/26 06:00:00 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/lib/worker.py", line 1, in main
KeyError: 'early'

Traceback (most recent call last):
  File "/jobs/flights.py", line 9, in <module>
    frame.write.save()
py4j.protocol.Py4JJavaError: An error occurred while calling o52.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/lib/worker.py", line 1, in main
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""

JAVA = """
Exception in thread "main" org.apache.spark.SparkException: Application failed
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.io.IOException: outer
Caused by: java.net.ConnectException: Connection refused
"""

CHAINED = """
Traceback (most recent call last):
  File "/jobs/flights.py", line 3, in load
FileNotFoundError: [Errno 2] No such file or directory: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/jobs/flights.py", line 5, in load
RuntimeError: the input is missing
"""

HANDLED = CHAINED.replace(
    "The above exception was the direct cause of the", "During handling of the above, the"
)


@pytest.mark.parametrize(
    ("log", "ending", "types"),
    [
        (PYTHON, "ValueError: no flights on 2014-01-01", "ValueError"),
        (
            TASK,
            "py4j.protocol.Py4JJavaError: An error occurred while calling o52.save.;"
            " caused by ZeroDivisionError: division by zero",
            "py4j.protocol.Py4JJavaError, caused by ZeroDivisionError",
        ),
        (
            JAVA,
            "org.apache.spark.SparkException: Application failed;"
            " caused by java.net.ConnectException: Connection refused",
            "org.apache.spark.SparkException, caused by java.net.ConnectException",
        ),
        (
            CHAINED,
            "RuntimeError: the input is missing;"
            " caused by FileNotFoundError: [Errno 2] No such file or directory: 'x'",
            "RuntimeError, caused by FileNotFoundError",
        ),
        (HANDLED, "RuntimeError: the input is missing", "RuntimeError"),
        ("26/11/26 06:00:00 INFO SparkContext: done\n", "", ""),
    ],
    ids=["python", "task", "java", "chained", "handled", "none"],
)
def test_the_ending_of_an_application(log: str, ending: str, types: str) -> None:
    """The last exception and its first cause are found, and every line is passed on unchanged."""
    lines, found = log.splitlines(keepends=True), SparkEnding()
    assert list(found.watch(lines)) == lines
    assert (str(found), found.types) == (ending, types)
