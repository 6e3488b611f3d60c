"""Ceph's S3 gateway on this machine, from Debian's packages: unpacked, not installed, its data in memory.

``install`` downloads and unpacks into a directory. ``run`` starts one monitor, one OSD on memstore, and the
gateway on a port, and runs until it is stopped; whoever stops it must stop these three too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from airflow_s3commit.testing.programs import free_ports

VERSION = "16.2.15+ds-0+deb12u2"

_LIBRARIES = "usr/lib/x86_64-linux-gnu"

#: Seconds that a step may take.
_LIMIT = 100.0

_CONF = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
mon initial members = a
mon cluster log file = {data}/cluster.log
keyring = {data}/keyring
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
mon allow pool size one = true
osd crush chooseleaf type = 0
mon max pg per osd = 2000
mon data avail crit = 1
mon data avail warn = 2
plugin dir = {libraries}/ceph
erasure code dir = {libraries}/ceph/erasure-code
osd class dir = {libraries}/rados-classes
osd class load list = *
osd class default list = *
run dir = {data}/run
admin socket = {data}/run/$name.asok
log file = {data}/$name.log
pid file = {data}/run/$name.pid
[mon.a]
mon data = {data}/mon
[osd.0]
osd data = {data}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {data}/rgw
rgw enable apis = s3
"""


def install(home: Path) -> None:
    """Download and unpack Ceph's packages, and their Debian dependencies that this machine lacks."""
    packages = home / "packages"
    (packages / "partial").mkdir(parents=True, exist_ok=True)
    names = [f"{name}={VERSION}" for name in ("radosgw", "ceph-mon", "ceph-osd")]
    folder = ("-o", f"Dir::Cache::archives={packages}", "-o", "Debug::NoLocking=1")
    download = ("apt-get", "-qq", "-y", "--download-only", "--no-install-recommends", *folder)
    subprocess.run([*download, "install", *names], check=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(home / "root")], check=True)


def run(home: Path, data: Path, port: int, access_key: str, secret_key: str) -> None:
    """Run the gateway, with a user who has these keys, until this process is stopped."""
    root = home / "root"
    variables = os.environ | {
        "LD_LIBRARY_PATH": ":".join(
            str(root / part) for part in ("lib/x86_64-linux-gnu", _LIBRARIES, f"{_LIBRARIES}/ceph", "usr/lib")
        ),
        "PATH": f"{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}",
        "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
    }
    for name in ("mon", "osd", "rgw", "run"):
        (data / name).mkdir(parents=True, exist_ok=True)
    fsid, (v1, v2), keyring = str(uuid.uuid4()), free_ports(2), str(data / "keyring")
    conf = data / "ceph.conf"
    libraries = root / _LIBRARIES
    conf.write_text(_CONF.format(fsid=fsid, v1=v1, v2=v2, data=data, libraries=libraries, port=port))

    def do(*command: str) -> None:
        subprocess.run(command, env=variables, check=True, timeout=_LIMIT)

    def begin(*command: str) -> None:
        subprocess.Popen([*command, "-c", str(conf), "-f"], env=variables)

    do("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    for name in ("client.admin", "client.rgw", "osd.0"):
        caps = ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
        do("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
    address = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
    do("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, str(data / "monmap"))
    mkfs = ("--mkfs", "--monmap", str(data / "monmap"), "--keyring", keyring)
    do("ceph-mon", "-c", str(conf), "-i", "a", *mkfs)
    begin("ceph-mon", "-i", "a")
    osd = str(uuid.uuid4())
    ceph = (sys.executable, str(root / "usr/bin/ceph"), "-c", str(conf), "--connect-timeout", "60")
    do(*ceph, "osd", "new", osd)
    do("ceph-osd", "-c", str(conf), "-i", "0", "--mkfs", "--osd-uuid", osd)
    begin("ceph-osd", "-i", "0")
    # The creation of a user needs the OSD, and waits for it.
    user = ("user", "create", "--uid=jobs", "--display-name=jobs")
    keys = (f"--access-key={access_key}", f"--secret-key={secret_key}")
    do("radosgw-admin", "-c", str(conf), "-n", "client.rgw", *user, *keys)
    begin("radosgw", "-n", "client.rgw")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1] == "install":
        install(Path(sys.argv[2]))
    else:
        run(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6])
