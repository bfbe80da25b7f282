"""Manifests of the documentation have fields that the clients of Kubernetes and Kubeflow know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.programs

PAGE = Path(__file__).parents[2] / "docs/how-to/run-on-kubernetes.md"


def manifests() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(block) for block in blocks]


def unknown_fields(value: Any, kind: str, models: Any, where: str = "") -> list[str]:
    """Fields that the client's model does not have, down to the last."""
    listed = re.fullmatch(r"list\[(.+)\]", kind)
    named = re.fullmatch(r"dict\(\w+, (.+)\)|dict\[\w+, (.+)\]", kind)
    if listed:
        inside = [(item, listed[1], f"{where}[{i}]") for i, item in enumerate(value)]
    elif named:
        inside = [(v, named[1] or named[2], f"{where}.{key}") for key, v in value.items()]
    elif not hasattr(models, kind):
        return []
    else:
        model = getattr(models, kind)
        types = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
        extra = [f"{where}.{key}" for key in value if key not in types]
        inside = [(v, types[key], f"{where}.{key}") for key, v in value.items() if key in types]
        return extra + [u for v, of, at in inside for u in unknown_fields(v, of, models, at)]
    return [u for v, of, at in inside for u in unknown_fields(v, of, models, at)]


def of_kind(kind: str) -> dict[str, Any]:
    return next(manifest for manifest in manifests() if manifest.get("kind") == kind)


def test_the_pytorchjob_is_one_by_kubeflow_s_client() -> None:
    client = pytest.importorskip("kubernetes.client")
    kubeflow = pytest.importorskip("kubeflow.training")
    job = of_kind("PyTorchJob")
    assert unknown_fields(job, "KubeflowOrgV1PyTorchJob", kubeflow) == []
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        assert unknown_fields(replicas["template"], "V1PodTemplateSpec", client) == []
        assert replicas["template"]["spec"]["containers"][0]["name"] == "pytorch"  # it must be


def test_the_jobs_of_the_jobset_are_jobs_by_kubernetes_client() -> None:
    client = pytest.importorskip("kubernetes.client")
    (node,) = of_kind("JobSet")["spec"]["replicatedJobs"]
    assert set(node) <= {"name", "replicas", "template"}
    assert unknown_fields(node["template"], "V1JobTemplateSpec", client) == []


def test_a_misspelt_field_is_found() -> None:
    client = pytest.importorskip("kubernetes.client")
    pod = {"spec": {"containers": [{"name": "a", "volumeMount": []}]}}
    assert unknown_fields(pod, "V1PodTemplateSpec", client) == [".spec.containers[0].volumeMount"]
