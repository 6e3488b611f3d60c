"""Real releases of Hadoop, with jars from Maven: small programs of ours run on them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RELEASES", "Hadoop"]

#: Jars that Spark has in its own folder start so.
_SPARKS_OWN = ("hadoop-client", "slf4j", "snappy", "jsr305", "netty", "commons-")

HERE = Path(__file__).parent
POM = HERE / "pom.xml"

#: The releases: the last that reads ETags as strings, and the newest.
RELEASES = ("3.4.1", "3.5.0")


@dataclass(frozen=True)
class Hadoop:
    """One release of Hadoop.

    Attributes:
        release: Its version.
        class_path: Its jars, hadoop-aws and the AWS SDK among them.
        classes: Where programs are compiled to.
    """

    release: str
    class_path: str
    classes: Path

    @property
    def jars_for_spark(self) -> list[str]:
        """The jars of S3A that Spark lacks."""
        jars = self.class_path.split(":")
        return [jar for jar in jars if not Path(jar).name.startswith(_SPARKS_OWN)]

    @classmethod
    def get(cls, release: str, directory: Path) -> Hadoop:
        """Return a release, or skip the test where Maven or a Java compiler is missing, or its jars are.

        Args:
            release: The version.
            directory: Where it is remembered which jars those are.
        """
        for program in ("mvn", "javac"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed: Debian has it in maven and default-jdk-headless")
        remembered = directory / f"{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}-{release}"
        if not remembered.exists() or not all(map(Path.exists, map(Path, remembered.read_text().split(":")))):
            asked = ["mvn", "-B", "-q", f"-P{release}", "-f", str(POM), "dependency:build-classpath"]
            made = remembered.with_name(f"{remembered.name}.new")
            answer = subprocess.run(
                [*asked, f"-Dmdep.outputFile={made}"],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            if answer.returncode:
                pytest.skip(f"Maven cannot get the jars of Hadoop {release}: {answer.stdout.strip()[:500]}")
            made.replace(remembered)
        classes = remembered.with_name(f"{remembered.name}-classes")
        classes.mkdir(exist_ok=True)
        return cls(release, remembered.read_text(), classes)

    def run(
        self,
        program: str,
        *arguments: str,
        exit_code: int = 0,
        environment: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float = 180.0,
    ) -> list[list[str]]:
        """Run a program of this folder, and return the lines that it printed, each as its values."""
        source, compiled = HERE / f"{program}.java", self.classes / f"{program}.class"
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            javac = ["javac", "-proc:none", "-cp", self.class_path, "-d", str(self.classes), str(source)]
            subprocess.run(javac, check=True, timeout=timeout)
        settings = [f"-D{name}={value}" for name, value in (properties or {}).items()]
        command = ["java", *settings, "-cp", f"{self.classes}:{self.class_path}", program, *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == exit_code, done.stderr.decode()[-4000:]
        return [line.split("\t") for line in done.stdout.decode().splitlines()]
