"""The Kubernetes page without a cluster: manifests by Kubernetes' schemas, pods as Airflow makes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.docs.blocks import DOCS, ROOT, blocks_of

pytestmark = [pytest.mark.airflow, pytest.mark.xdist_group("docs-dags")]

TITLED = {block.title: block.text for block in blocks_of(DOCS / "how-to" / "kubernetes.md") if block.title}
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(TITLED["pipeline.yaml"]))

VERSION = "1.37"

#: The manifest for the Spark operator, on the page of other engines.
(OPERATOR,) = [
    block.text for block in blocks_of(DOCS / "how-to" / "other-engines.md") if block.language == "yaml"
]

#: Prints each task's pod, as the KubernetesExecutor starts it, and, rendered, the pod that the stage starts
#: and the manifest of the Spark operator.
PODS = """
import json, sys
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator
from kubernetes.client import ApiClient, models as k8s

(dag,) = DagBag(sys.argv[1]).dags.values()
template = k8s.V1Pod(spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base")]))


class Instance:
    try_number = 2
    map_index = -1

    def xcom_pull(self, task_ids, map_indexes):
        assert (task_ids, map_indexes) == ("refresh.setup", -1)
        home = "s3://lake/flights/"
        return {"job_id": "job-1", "destination": home, "staging": f"{home}__m", "sha256": "0a"}


def tell(pod):
    return ApiClient().sanitize_for_serialization(pod)


tasks = {
    task.task_id: tell(PodGenerator.construct_pod(
        dag_id=dag.dag_id, task_id=task.task_id, pod_id="a-pod", try_number=1, kube_image="airflow:1",
        date=datetime(2013, 1, 1, tzinfo=UTC), args=["python", "-m", "airflow"],
        pod_override_object=task.executor_config["pod_override"], base_worker_pod=template,
        namespace="airflow", scheduler_job_id="1", run_id="a-run",
    ))
    for task in dag.tasks
}
stage = dag.get_task("refresh.load")
run = SimpleNamespace(logical_date=None, run_after=datetime(2013, 1, 1, tzinfo=UTC))
stage.render_template_fields({"ti": Instance(), "dag_run": run})
manifest = dag.get_template_env().from_string(sys.argv[2]).render({"ti": Instance(), "dag_run": run})
made = {"tasks": tasks, "stage": tell(stage.build_pod_request_obj()), "operator": manifest}
print("\\n" + json.dumps(made))
"""

#: The conf of the job that the rendered templates find.
CONF = {
    "spark.s3commit.job.id": "job-1",
    "spark.s3commit.job.destination": "s3://lake/flights/",
    "spark.s3commit.job.staging": "s3://lake/flights/__m",
    "spark.s3commit.job.sha256": "0a",
    "spark.s3commit.stage": "load",
    "spark.s3commit.stage.attempt": "2",
}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Let Airflow make the page's pods."""
    home = tmp_path_factory.mktemp("airflow")
    provider = home / "provider"
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    subprocess.run(
        [
            *(uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", provider),
            *("--constraint", "constraints.txt", "--group", "kubernetes"),
        ],
        cwd=ROOT,
        check=True,
    )
    shown = home / "nightly_on_kubernetes.py"
    shown.write_text(TITLED[shown.name])
    cluster = {"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "none", "context": {"cluster": "none", "user": ""}}
    nowhere = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
    (home / "kubeconfig").write_text(yaml.safe_dump(nowhere | {"current-context": "none", "users": []}))
    done = subprocess.run(
        [sys.executable, "-c", PODS, str(shown), OPERATOR],
        env=os.environ
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "KUBECONFIG": str(home / "kubeconfig"),
            "PYTHONPATH": str(provider),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return made


def account(pod: dict[str, Any]) -> str:
    """Return a pod's service account."""
    return str(pod["spec"]["serviceAccountName"])


def test_the_manifests_are_kubernetes_s() -> None:
    """Each keeps to the schema of its kind, with no field that the kind does not have."""
    assert len(MANIFESTS) >= 6
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    broken = {**MANIFESTS[1], "automountServiceAccountToken": "no"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_rights_are_minimal() -> None:
    """Only what starts pods may, in one namespace, without a wildcard; what has the bucket has no token."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for manifest in MANIFESTS:
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    assert not {"ClusterRole", "ClusterRoleBinding"} & set(by_kind)
    (role,) = by_kind["Role"]
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert set(rule["resources"]) <= {"pods", "pods/log", "events"}
    (binding,) = by_kind["RoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {subject["name"] for subject in binding["subjects"]} == {"launcher", "airflow-scheduler"}
    accounts = {found["metadata"]["name"]: found for found in by_kind["ServiceAccount"]}
    with_bucket = [name for name, found in accounts.items() if found["metadata"].get("annotations")]
    assert with_bucket == ["pipeline"]
    assert accounts["pipeline"]["automountServiceAccountToken"] is False


@pytest.mark.all
def test_every_pod_is_valid_and_restricted(pods: dict[str, Any]) -> None:
    """What Airflow makes is a pod by the schema, in the namespace, and what its profile lets run."""
    for pod in [*pods["tasks"].values(), pods["stage"]]:
        kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **pod}, VERSION, strict=True)
        assert pod["metadata"]["namespace"] == "pipeline"
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["resources"]["limits"]["memory"]


@pytest.mark.all
def test_each_pod_wears_its_identity(pods: dict[str, Any]) -> None:
    """Steps of the commit and the Spark job have the bucket; the task that starts the job has not."""
    worn = {task: account(pod) for task, pod in pods["tasks"].items()}
    assert worn.pop("refresh.load") == "launcher"
    assert {"refresh.setup", "refresh.commit", "refresh.abort"} <= set(worn)
    assert set(worn.values()) == {"pipeline"}
    assert account(pods["stage"]) == "pipeline"
    assert pods["stage"]["spec"]["automountServiceAccountToken"] is False


@pytest.mark.all
def test_the_spark_job_knows_its_commit(pods: dict[str, Any]) -> None:
    """The conf of the rendered command is the job's, with the try as the stage's attempt."""
    (container,) = pods["stage"]["spec"]["containers"]
    assert container["command"] == ["spark-submit"]
    given = container["args"]
    conf = dict(given[at + 1].split("=", 1) for at, word in enumerate(given) if word == "--conf")
    assert conf == CONF


@pytest.mark.all
def test_the_spark_operator_s_job_knows_its_commit(pods: dict[str, Any]) -> None:
    """The rendered manifest has a name that Kubernetes takes, and the job's conf as text."""
    manifest = yaml.safe_load(pods["operator"])
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
    assert manifest["spec"]["sparkConf"] == CONF
    assert manifest["spec"]["arguments"] == ["--day", "2013-01-01"]
