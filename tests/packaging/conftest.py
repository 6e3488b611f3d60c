"""The wheel and the source distribution, built once from a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]

#: What a checkout may have lying about, and a copy need not.
LYING_ABOUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", ".demo", ".stack"
)

#: What a user has beside the sources and does not want to be published.
PRIVATE = ("docker/.env", ".stack/env", ".demo/airflow/airflow.cfg", ".venv/pyvenv.cfg")


@dataclass(frozen=True)
class Distributions:
    """What was built.

    Attributes:
        sdist: The source distribution.
        wheel: The wheel, built from the source distribution.
        direct: The wheel, built from the checkout.
        treasure: What stood in the private files of that checkout.
    """

    sdist: Path
    wheel: Path
    direct: Path
    treasure: bytes


def build(source: Path, target: Path, *arguments: str) -> None:
    """Build with what is installed here: no network, no other versions, and no jar."""
    done = try_to_build(source, target, *arguments, S3COMMIT_WITHOUT_JAR="1")
    assert done.returncode == 0, done.stdout + done.stderr


def try_to_build(
    source: Path, target: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Build as `build` does, with further variables in the environment; return how that went."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(target),
        *arguments,
        str(source),
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build everything, in a copy that has what a user's checkout has lying about."""
    directory = tmp_path_factory.mktemp("distributions")
    copy = directory / "checkout"
    shutil.copytree(ROOT, copy, ignore=LYING_ABOUT)
    treasure = f"PASSWORD={uuid4().hex}"
    for name in PRIVATE:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(treasure)
    build(copy, directory / "dist")
    build(copy, directory / "direct", "--wheel")
    (sdist,) = (directory / "dist").glob("*.tar.gz")
    (wheel,) = (directory / "dist").glob("*.whl")
    (direct,) = (directory / "direct").glob("*.whl")
    return Distributions(sdist, wheel, direct, treasure.encode())


def uv(*arguments: str) -> str:
    """Run uv and return what it says."""
    program = Path(sysconfig.get_path("scripts")) / "uv"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, and what it asks for, into an empty environment; return that."""
    environment = tmp_path_factory.mktemp("empty") / "venv"
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    uv(
        *("pip", "install", "--quiet", "--python", str(environment / "bin" / "python")),
        *("--constraint", str(ROOT / "constraints.txt"), str(distributions.wheel)),
    )
    return environment
