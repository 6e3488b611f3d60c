"""The zip and the jar that ship the package, and the errors if a library or a compiler is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from airflow_s3commit import __version__
from airflow_s3commit.spark import MissingJar, MissingLibrary, pending_jar, py_files, shipping
from airflow_s3commit.spark.shipping import GUARD_CLASS, PROTOCOL_CLASS, require_libraries


def test_the_zip_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    """The same code makes the same bytes under the same name, in any process."""
    here = Path(py_files(tmp_path / "here"))
    code = "import sys; from airflow_s3commit.spark import py_files; print(py_files(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "there")]
    there = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert there.name == here.name
    assert __version__ in here.name
    assert there.read_bytes() == here.read_bytes()


def test_the_zip_is_written_once_and_again_when_damaged(tmp_path: Path) -> None:
    """An existing zip is left unchanged; a truncated one is written again."""
    path = Path(py_files(tmp_path))
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    assert Path(py_files(tmp_path)) == path
    assert path.stat().st_mtime_ns == written
    path.write_bytes(whole[:100])
    py_files(tmp_path)
    assert path.read_bytes() == whole
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_zip_only_has_python(tmp_path: Path) -> None:
    """It has every module of the package and the one that Spark finds the data source by; nothing else."""
    with zipfile.ZipFile(py_files(tmp_path)) as archive:
        names = archive.namelist()
    assert names == sorted(names)
    assert {name.rpartition(".")[2] for name in names} == {"py"}
    assert {name.partition("/")[0] for name in names} == {"airflow_s3commit", "pyspark_s3commit"}
    assert {"airflow_s3commit/protocol/job.py", "airflow_s3commit/spark/write.py"} <= set(names)


def test_a_driver_that_runs_from_a_zip_makes_the_same_zip(tmp_path: Path) -> None:
    """A driver that was itself sent the package can send it on."""
    path = Path(py_files(tmp_path / "here"))
    code = (
        "import sys; sys.path[:0] = sys.argv[1:2]; import airflow_s3commit\n"
        "assert sys.argv[1] in airflow_s3commit.__file__\n"
        "from airflow_s3commit.spark import py_files; print(py_files(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "there")]
    there = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert there.read_bytes() == path.read_bytes()


def test_a_zip_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies while it writes leaves no half of a zip that another would ship."""

    def dies(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", dies)
    with pytest.raises(KeyboardInterrupt):
        py_files(tmp_path)
    assert not [*tmp_path.glob("*.zip")]


def test_the_path_holds_in_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative directory gives an absolute path: spark-submit may start elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert Path(py_files("here")).parent == tmp_path / "here"


def test_the_usual_place_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default the zip is in the user's cache, where no other user can replace it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = Path(py_files())
    assert path.parent == tmp_path / "airflow-s3commit"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_missing_library_is_named_with_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the library, this Python, and the command; a driver can do without pyarrow."""
    monkeypatch.delitem(sys.modules, "pyspark.worker", raising=False)
    monkeypatch.setattr(shipping, "find_spec", lambda name: None if name == "pyarrow" else name)
    require_libraries()
    monkeypatch.setattr(shipping, "find_spec", lambda name: None if name == "msgspec" else name)
    with pytest.raises(MissingLibrary, match=r"needs msgspec, missing in .* -m pip install") as missing:
        require_libraries()
    assert missing.value.name == "msgspec"


@pytest.mark.parametrize("library", ["boto3", "msgspec", "pyarrow"])
def test_importing_the_door_without_a_library_says_so(library: str) -> None:
    """If a library is missing in a Python worker, importing the Spark door names it and the remedy."""
    code = (
        f"import sys; sys.modules.update({{{library!r}: None, 'pyspark.worker': sys}})\n"
        "try: import airflow_s3commit.spark.session\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    ).stdout
    assert said.startswith(f"MissingLibrary airflow-s3commit needs {library}")


@pytest.fixture
def jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a JDK whose compiler writes its own path as a class, and notes each call; it is JAVA_HOME."""
    for home in ("home", "in_path"):
        javac = tmp_path / home / "bin" / "javac"
        javac.parent.mkdir(parents=True)
        javac.write_text(
            f'#!/bin/sh\necho called >> {tmp_path}/calls\nwhile [ "$1" != -d ]; do shift; done\n'
            'mkdir -p "$2/s3commit" && printf "%s" "$0" > "$2/s3commit/A.class"\n'
        )
        javac.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/in_path/bin:{os.environ['PATH']}")
    return tmp_path


def compiler_of(jar: str) -> str:
    """Return the compiler that made the one class of a jar, which has the guard as a service too."""
    with zipfile.ZipFile(jar) as archive:
        service = archive.read("META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider")
        assert service.decode() == f"{GUARD_CLASS}\n"
        return archive.read("s3commit/A.class").decode()


def test_the_jar_is_made_by_the_jdk_of_java_home_or_of_the_path(
    jdk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is that of the machine's Spark; the cache keeps what either made."""
    assert compiler_of(pending_jar()) == compiler_of(pending_jar()) == f"{jdk}/home/bin/javac"
    assert (jdk / "calls").read_text() == "called\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(jdk / "other"))
    monkeypatch.setenv("JAVA_HOME", str(jdk / "no"))
    assert compiler_of(pending_jar()) == f"{jdk}/in_path/bin/javac"


def test_each_code_has_a_jar_of_its_own(jdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a source or a service makes another name, and one that a wheel brought is taken."""
    sources = jdk / "jvm"
    sources.mkdir()
    monkeypatch.setattr(shipping, "_SOURCES", sources)
    names = []
    for code in ("class A {}", "class B {}"):
        (sources / "A.java").write_text(code)
        names.append(Path(pending_jar()).name)
    (sources / names[-1]).write_bytes(b"shipped")
    assert pending_jar() == str(sources / names[-1])
    monkeypatch.setattr(shipping, "_SERVICES", {**shipping._SERVICES, "b": "B"})
    names.append(Path(pending_jar()).name)
    assert len({*names}) == 3


def test_a_jar_that_cannot_be_made_says_why(jdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own words are in the error; without PySpark there is nothing to compile against."""
    javac = jdk / "home" / "bin" / "javac"
    javac.write_text("#!/bin/sh\necho 'A.java:1: error: no such symbol' >&2\nexit 1\n")
    with pytest.raises(MissingJar, match=r"javac cannot compile .*: A\.java:1: error: no such symbol"):
        pending_jar()
    monkeypatch.setattr(shipping, "find_spec", lambda _: None)
    with pytest.raises(MissingJar, match="no PySpark to compile it"):
        pending_jar()
    assert not (jdk / "cache").exists()


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not installed")
def test_a_checkout_compiles_the_jar_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call compiles Java 8's class files into the user's cache, and the second finds them there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Path(pending_jar())
    assert made.parent == tmp_path / "airflow-s3commit"
    with zipfile.ZipFile(made) as jar:
        version = jar.read(PROTOCOL_CLASS.replace(".", "/") + ".class")[7]
    assert version == 52
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert pending_jar() == str(made)


@pytest.mark.spark
@pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not installed")
def test_the_jar_hides_the_paths_that_readers_hide(tmp_path: Path) -> None:
    """What the jar takes for a temporary path, and publishes at once, is what our readers skip."""
    vectors = json.loads((Path(__file__).parents[1] / "hidden_paths.json").read_text())
    (tmp_path / "Ask.java").write_text(
        "package s3commit.spark; class Ask { public static void main(String[] paths) {"
        " for (String path : paths) System.out.println(PendingJob.isHidden(path)); } }"
    )
    jars = f"{pending_jar()}{os.pathsep}{Path(pyspark.__file__).parent}/jars/*"
    javac = ["javac", "-proc:none", "-cp", jars, "-d", str(tmp_path), str(tmp_path / "Ask.java")]
    subprocess.run(javac, check=True)
    ask = ["java", "-cp", f"{tmp_path}{os.pathsep}{jars}", "s3commit.spark.Ask", *vectors]
    said = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(vectors, said, strict=True)) == {
        path: str(hidden).lower() for path, hidden in vectors.items()
    }


@pytest.mark.spark
def test_without_a_compiler_the_error_names_the_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout without javac says that a wheel has the jar, and what to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingJar, match=r"no javac in JAVA_HOME or PATH .* install a wheel"):
        pending_jar()
