"""The manifests for Kubernetes, against its own schemas and those of JobSet's API; an unknown field is an error.

The schemas of Kubernetes come with kubernetes-validate, JobSet's types with kubeflow-trainer-api.
"""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

from launcher.processes import exit_codes
from tests.docs.snippets import blocks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "kubernetes"
PAGE = ROOT / "docs" / "how-to" / "kubernetes.md"
VERSIONS = ("1.33", "1.37")
"""The oldest one that the manifests name, and the newest one that there are schemas of."""


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8")))


def job() -> dict[str, Any]:
    return read("job.yaml")[1]


def jobset() -> dict[str, Any]:
    return read("jobset.yaml")[0]


def job_of_jobset() -> dict[str, Any]:
    template = jobset()["spec"]["replicatedJobs"][0]["template"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, **template}


def check_jobset(manifest: dict[str, Any]) -> None:
    """Raise where JobSet's API has another type for a field, or none: what it does not know is dropped."""
    assert JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [*read("job.yaml"), job_of_jobset()], ids=["service", "job", "job of the jobset"])
def test_a_manifest_has_the_fields_that_kubernetes_knows(manifest: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True) == version


def test_the_jobset_has_the_fields_that_jobset_knows() -> None:
    check_jobset(jobset())


@pytest.mark.parametrize("path", [(), ("spec",), ("spec", "podFailurePolicy"), ("spec", "template", "spec")])
def test_an_unknown_field_is_an_error(path: tuple[str, ...]) -> None:
    manifest = job()
    place = manifest
    for name in path:
        place = place[name]
    place["podFailurePolice"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurePolice"):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("path", [("spec",), ("spec", "network"), ("spec", "failurePolicy")])
def test_an_unknown_field_of_a_jobset_is_an_error(path: tuple[str, ...]) -> None:
    manifest = jobset()
    place = manifest
    for name in path:
        place = place[name]
    place["maxRestart"] = 1
    with pytest.raises(AssertionError):
        check_jobset(manifest)


def test_the_jobset_runs_the_same_pods_as_the_job() -> None:
    def pod(manifest: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        spec = copy.deepcopy(manifest["spec"])
        inner = spec["template"]["spec"]
        inner.pop("subdomain", None)  # JobSet's controller sets it
        inner.pop("affinity")  # each names its pods by a label of its own
        environment = {each["name"]: each for each in inner["containers"][0].pop("env")}
        endpoints = environment.pop("ENDPOINTS")["value"].split()
        return spec, len(endpoints), environment

    assert pod(job()) == pod(job_of_jobset())


def test_counts_agree() -> None:
    spec = job()["spec"]
    environment = {each["name"]: each.get("value") for each in spec["template"]["spec"]["containers"][0]["env"]}
    least, most = int(environment["MIN_NODES"]), int(environment["MAX_NODES"])

    assert spec["completions"] == spec["parallelism"] == most
    assert spec["successPolicy"]["rules"] == [{"succeededCount": least}]
    assert spec["maxFailedIndexes"] == most - least
    assert 2 * least > most
    assert environment["GPUS_PER_NODE"] == str(
        spec["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    )


def test_exit_codes_that_another_pod_cannot_help_end_the_job() -> None:
    ignored, failed = job()["spec"]["podFailurePolicy"]["rules"]

    assert ignored["action"] == "Ignore"
    assert failed["action"] == "FailJob"
    assert failed["onExitCodes"]["values"] == [exit_codes.FAILED, exit_codes.REFUSED, exit_codes.NO_RESTART]


def test_what_kubernetes_demands_beyond_its_schemas() -> None:
    spec = job()["spec"]

    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # of a job with podFailurePolicy
    assert spec["podReplacementPolicy"] == "Failed"  # likewise
    assert spec["completionMode"] == "Indexed"  # of one with backoffLimitPerIndex and successPolicy
    assert spec["template"]["spec"]["subdomain"] == read("job.yaml")[0]["metadata"]["name"]  # for the pods' names
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in spec["template"]["spec"]["containers"][0]["volumeMounts"]} == volumes


def test_the_secret_of_the_page_is_one_that_kubernetes_takes(tmp_path: Path) -> None:
    (block,) = [each for each in blocks(PAGE.read_text(encoding="utf-8")) if "kind: Secret" in each.body]
    subprocess.run(["bash", "-eu", "-c", block.body], cwd=tmp_path, check=True)
    secret = yaml.safe_load((tmp_path / "secret.yaml").read_text())
    volume = next(each for each in job()["spec"]["template"]["spec"]["volumes"] if each["name"] == "secret")

    assert kubernetes_validate.validate(secret, VERSIONS[-1], strict=True) == VERSIONS[-1]
    assert secret["metadata"]["name"] == volume["secret"]["secretName"]
    assert len(secret["stringData"]["secret"]) >= 16
    assert (tmp_path / "secret.yaml").stat().st_mode & 0o077 == 0
