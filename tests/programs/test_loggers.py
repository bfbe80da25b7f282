"""The recipes of docs/how-to/training-loggers.md with the real libraries, read back by them.

As the other programs: started by ``python3 tasks.py programs`` only, in their environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

import pytest

import distprof
from distprof.documents.saved import REPORT
from distprof.formats import RenderOptions
from tests.programs.started import ROOT, SCRIPTS, has_module, python

pytestmark = pytest.mark.programs

PAGE = ROOT / "docs" / "how-to" / "training-loggers.md"
TRACES = ROOT / "tests" / "golden" / "kineto" / "dlrm-v100-8gpu"
LOGGERS = ("tensorboard", "wandb", "mlflow")


def blocks() -> dict[str, str]:
    """Python of the page: what all recipes share under ``""``, then each under its heading."""
    found = {"": ""}
    for section in re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.M):
        heading = section.partition("\n")[0]
        name = {"TensorBoard": "tensorboard", "Weights & Biases": "wandb", "MLflow": "mlflow"}
        key = name.get(heading, "")
        found[key] = found.get(key, "") + "".join(
            re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
        )
    return found


@pytest.fixture(scope="module", params=LOGGERS)
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the recipe of a logger left, as its own library reads it."""
    name = request.param
    if not has_module(name):
        pytest.skip(f"{name} is not installed in the environment of the programs")
    folder = tmp_path_factory.mktemp(name)
    (folder / "traces").symlink_to(TRACES)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DISTPROF_CACHE_DIR": str(folder / "cache"),
        "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_SILENT": "true",
        "HOME": str(folder),
    }
    code = blocks()[""] + blocks()[name]
    for command in (["-c", code], [str(SCRIPTS / "logged.py"), name]):
        done = subprocess.run(
            [python(), *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2_000:]
    return {"logger": name, **json.loads(done.stdout.splitlines()[-1])}


def report() -> Any:
    return distprof.analyze(TRACES)


def test_the_page_has_a_recipe_for_each() -> None:
    assert set(blocks()) == {"", *LOGGERS}


def test_every_metric_arrives_with_its_value(logged: dict[str, Any]) -> None:
    expected = {f"distprof/{name}": value for name, value in report().metrics().items()}
    found = {name: value for name, value in logged["metrics"].items() if name in expected}
    # TensorBoard keeps single precision
    assert found == pytest.approx(expected, rel=1e-6)


def test_they_are_at_the_step_of_the_report(logged: dict[str, Any]) -> None:
    if "steps" not in logged:
        pytest.skip("the recipe leaves steps to the run")
    assert logged["steps"] == [report().capture.steps[-1]]


def test_verdict_and_plan_arrive_as_text(logged: dict[str, Any]) -> None:
    texts = list(logged["texts"].values())
    made = report()
    assert any(made.verdict.headline in str(text) for text in texts)
    plan = REPORT.reporter("brief")(made, RenderOptions()).partition("\nPlan\n")[2].splitlines()[0]
    assert any(plan in str(text) for text in texts)


def test_the_page_arrives_where_the_logger_shows_pages(logged: dict[str, Any]) -> None:
    if logged["logger"] == "tensorboard":
        pytest.skip("TensorBoard shows no pages")
    pages = [*logged.get("pages", ()), *map(str, logged["texts"].values())]
    assert any("<html" in page and "distprof" in page for page in pages)
