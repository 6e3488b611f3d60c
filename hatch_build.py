"""Refuses to build a wheel or a source distribution without the jar, which Git does not have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Set it to build without the jar, where Spark's own writers are not used or a JDK can compile it later.
WITHOUT = "S3COMMIT_WITHOUT_JAR"


class JarRequired(BuildHookInterface[Any]):
    """Looks for the jar before anything is built; an editable installation needs none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look for the jar.

        Args:
            version: ``editable``, or another kind of build.
            build_data: What hatchling builds.

        Raises:
            FileNotFoundError: There is none.

        """
        del build_data
        jars = Path(self.root, "airflow_s3commit", "spark", "jvm").glob("*.jar")
        if version != "editable" and not os.environ.get(WITHOUT) and not any(jars):
            raise FileNotFoundError(
                "airflow_s3commit/spark/jvm has no jar, which Spark's own writers need: run `make dist`, to"
                f" compile it and build this. {WITHOUT}=1 builds without it; then it is compiled when it is"
                " first needed, with javac and the jars of PySpark."
            )
