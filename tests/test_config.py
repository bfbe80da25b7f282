import json
from importlib.resources import files

import jsonschema
import pytest

from distprof.config import CONFIG_FILE, Config, find_config, load_config, parse_config
from distprof.errors import UsageError
from distprof.terms import CollectiveKind


def test_patterns_and_limits_are_read(tmp_path):
    path = tmp_path / CONFIG_FILE
    path.write_text(
        """
        [communication]
        patterns = [{ match = "acme_sum", library = "acme", kind = "all_reduce" }]
        exclude = ["local_all_reduce"]
        [limits.COM101]
        min_overlap_ratio = 0.25
        """
    )
    config = load_config(path)
    (pattern,) = config.communication.patterns
    assert (pattern.match, pattern.library) == ("acme_sum", "acme")
    assert pattern.operation is CollectiveKind.ALL_REDUCE
    assert config.communication.exclude == ("local_all_reduce",)
    assert config.limits == {"COM101": {"min_overlap_ratio": 0.25}}
    assert config.source == str(path)


def test_nearest_file_above_the_folder_is_found(tmp_path):
    (tmp_path / CONFIG_FILE).write_text("")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) == tmp_path / CONFIG_FILE


def test_no_file_gives_the_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("distprof.config.find_config", lambda: None)
    assert load_config() == Config()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"limit": {}}, "limit"),
        ({"communication": {"pattern": []}}, "pattern"),
        ({"communication": {"patterns": [{"match": "x", "kin": "send"}]}}, "kin"),
        ({"communication": {"patterns": [{"match": "x", "kind": "allreduce"}]}}, "allreduce"),
        ({"communication": {"patterns": [{"match": "("}]}}, "("),
        ({"communication": {"patterns": [{}]}}, "match"),
        ({"communication": {"patterns": "x"}}, "patterns"),
        ({"communication": {"exclude": [3]}}, "3"),
        ({"communication": []}, "communication"),
        ({"limits": {"COM101": 3}}, "COM101"),
        ({"limits": {"COM101": {"x": "much"}}}, "much"),
        ({"limits": {"COM101": {"x": True}}}, "True"),
    ],
)
def test_what_is_not_understood_is_an_error_that_names_it(values, named):
    with pytest.raises(UsageError) as caught:
        parse_config(values, "distprof.toml")
    assert str(caught.value).startswith("distprof.toml: ")
    assert named in str(caught.value) or named == "match"


@pytest.mark.parametrize("content", [b"[limits", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path, content):
    path = tmp_path / CONFIG_FILE
    path.write_bytes(content)
    with pytest.raises(UsageError, match=CONFIG_FILE):
        load_config(path)


@pytest.mark.parametrize(
    "text",
    [
        f"[check]\nwindow = {'9' * 5_000}",
        f"[limits.COM101]\noverlap_ratio = 0x{'f' * 5_000}",
        f"[model]\nlayers = {2**63}",
        "[limits.COM101]\noverlap_ratio = nan",
        "[hardware.links.own]\ngb_per_s = inf",
        f"x = {'[' * 5_000}",
        f"[communication]\nexclude = ['{'(' * 2_000}{')' * 2_000}']",
        f"[communication]\nexclude = ['a{{{'9' * 30}}}']",
    ],
    ids=[
        "digits",
        "hexadecimal",
        "of 65 bits",
        "nan",
        "inf",
        "nested",
        "nested groups",
        "repetitions",
    ],
)
def test_what_python_itself_cannot_read_is_refused_in_a_sentence(tmp_path, text):
    path = tmp_path / CONFIG_FILE
    path.write_text(text)
    with pytest.raises(UsageError, match=CONFIG_FILE) as caught:
        load_config(path)
    assert "sys.set_int" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        load_config(tmp_path / "nowhere.toml")


def test_a_fabric_profile_is_named_relative_to_the_configuration(tmp_path):
    (tmp_path / "distprof.toml").write_text('fabric = "net/fabric.json"\n')
    assert load_config(tmp_path / "distprof.toml").fabric == str(tmp_path / "net" / "fabric.json")


def test_a_fabric_that_is_no_name_is_refused(tmp_path):
    (tmp_path / "distprof.toml").write_text("fabric = 3\n")
    with pytest.raises(UsageError, match="fabric must be a file name"):
        load_config(tmp_path / "distprof.toml")


def test_scale_up_domains_are_read():
    table = {"gpus_per_domain": 72, "domains": {"rack": ["n1", "n2-*"]}}
    topology = parse_config({"topology": table}, "distprof.toml").topology
    assert topology.gpus_per_domain == 72
    assert topology.domains == {"rack": ("n1", "n2-*")}
    assert parse_config({}, "distprof.toml").topology.gpus_per_domain is None


@pytest.mark.parametrize(
    "table",
    [
        {"gpus_per_domain": 0},
        {"gpus_per_domain": True},
        {"gpus_per_domain": 7.5},
        {"domains": ["n1"]},
        {"domains": {"rack": "n1"}},
        {"domains": {"rack": [1]}},
        {"racks": {}},
    ],
)
def test_domains_that_make_no_sense_are_refused(table):
    with pytest.raises(UsageError, match="topology"):
        parse_config({"topology": table}, "distprof.toml")


def test_the_gate_is_set_up_as_written():
    check = parse_config(
        {
            "check": {
                "metrics": ["step_time"],
                "tolerance": {"step_time": 0.03},
                "session_noise": 0.02,
                "inconclusive_fails": True,
                "window": 3,
                "history": "perf",
            }
        },
        "distprof.toml",
    ).check
    assert (check.metrics, check.tolerance) == (("step_time",), {"step_time": 0.03})
    assert (check.session_noise, check.inconclusive_fails) == (0.02, True)
    assert (check.window, check.history) == (3, "perf")
    assert parse_config({}, "distprof.toml").check.session_noise is None


@pytest.mark.parametrize(
    "values",
    [
        {"metrics": "step_time"},
        {"tolerance": {"step_time": 1}},
        {"tolerance": {"step_time": True}},
        {"session_noise": -0.1},
        {"session_noise": 1},
        {"session_noise": "low"},
        {"window": 0},
        {"window": 101},
        {"window": 2.5},
        {"inconclusive_fails": 1},
        {"history": 3},
        {"tolerances": {}},
    ],
)
def test_what_the_gate_cannot_be_told_is_refused(values):
    with pytest.raises(UsageError, match="check"):
        parse_config({"check": values}, "distprof.toml")


SCHEMA = json.loads(
    (files("distprof.documents") / "schemas" / "config.schema.json").read_text("utf-8")
)
EVERYTHING = {
    "fabric": "fabric.json",
    "documentation": "https://docs.example.org/distprof",
    "communication": {
        "patterns": [{"match": "acme_ring_sum", "library": "acme", "kind": "all_reduce"}],
        "exclude": ["my_local_all_reduce"],
    },
    "limits": {"COM101": {"overlap_ratio": 0.6}},
    "hardware": {"links": {"fast": {"gb_per_s": 100}}},
    "model": {"preset": "llama3-8b", "batch": 512, "precision": "fp8"},
    "topology": {"gpus_per_domain": 72, "domains": {"rack": ["n1", "n2-*"]}},
    "check": {"metrics": ["step_time"], "tolerance": {"step_time": 0.03}, "window": 3},
}


def test_the_schema_for_editors_knows_every_key_with_its_explanation():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(EVERYTHING, SCHEMA)
    assert parse_config(EVERYTHING, "distprof.toml").check.window == 3
    assert set(SCHEMA["$defs"]["ConfigFile"]["properties"]) == set(EVERYTHING)
    for definition in SCHEMA["$defs"].values():
        for value in definition["properties"].values():
            assert "description" in value or "$ref" in value


@pytest.mark.parametrize(
    "values",
    [
        {"limit": {}},
        {"source": "x"},
        {"communication": {"patterns": [{"match": "x", "kind": "allreduce"}]}},
        {"communication": {"patterns": [{}]}},
        {"limits": {"COM101": {"x": "much"}}},
        {"fabric": 3},
        {"topology": {"gpus_per_domain": 0}},
        {"check": {"tolerance": {"step_time": 1}}},
        {"check": {"window": 101}},
        {"model": {"layers": 0}},
        {"model": {"precision": "fp7"}},
        {"model": {"gated": 1}},
    ],
)
def test_the_schema_for_editors_refuses_what_distprof_refuses(values):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)
    with pytest.raises(UsageError):
        parse_config(values, "distprof.toml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"check": {"tolerances": {}}},
            "check.tolerances is unknown: did you mean tolerance? Choose from metrics, tolerance, ",
        ),
        (
            {"check": {"window": 101}},
            "check.window must be a whole number from 1 to 100, not 101",
        ),
        (
            {"communication": {"patterns": [{"match": "x"}, {"match": "("}]}},
            "communication.patterns[1]: '(' is not a regular expression",
        ),
        ({"communication": {"patterns": [{}]}}, "communication.patterns[0].match is missing"),
        ({"model": {"precision": "fp7"}}, "model.precision must be one of bf16, fp16, fp8, fp32"),
        ({"limits": {"COM101": {"x": "much"}}}, "limits.COM101.x must be a number, not 'much'"),
    ],
)
def test_a_message_names_the_key_what_was_expected_and_what_was_found(values, said):
    with pytest.raises(UsageError) as caught:
        parse_config(values, "distprof.toml")
    assert str(caught.value).startswith(f"distprof.toml: {said}")
