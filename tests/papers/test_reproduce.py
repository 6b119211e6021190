"""`mereo reproduce`: studies and experiments by one command, names as they are typed, options that have no use."""

import json
from pathlib import Path

import pytest

from mereo.cli.comparison_options import ReproduceOptions
from mereo.cli.main import main
from mereo.errors import UsageError
from papers.common.settings import Settings
from papers.listing import EXPERIMENTS, STUDIES
from papers.reproduce import STUDY_OPTIONS, show_experiment


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    def run(*words):
        code = main(["reproduce", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_every_name_is_listed(call):
    code, out, _ = call()
    listed = [line.split()[0] for line in out.splitlines()[1:]]
    assert code == 0
    assert sorted(listed) == sorted(STUDIES.keys() | EXPERIMENTS.keys())


@pytest.mark.parametrize("name", ["toy_routing", "toy-routing"])
def test_an_experiment_runs_by_its_name(call, name):
    code, out, err = call(name, "--output", "there")
    assert code == 0, err
    assert "closed form" in out and "there/toy_routing/results.json" in out
    assert Path("there/toy_routing/toy_routing.png").exists()


def test_percent_have_two_decimals(capsys):
    results = {"tables": {"found": [{"name": "a", "test %": 9.7493, "loss": 0.123456, "n": 1200}]}, "files": ["x"]}
    show_experiment(EXPERIMENTS["toy_routing"], results)
    assert "a     9.75    0.1235  1,200" in capsys.readouterr().out


def test_json_is_one_document(call):
    code, out, _ = call("toy_routing", "--json")
    found = json.loads(out)
    assert code == 0
    assert found == json.loads(Path("runs/toy_routing/results.json").read_text())
    assert found["end_from_a_tie"] == pytest.approx([0.5] * 3, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy_rooting"], "did you mean 'toy_routing'"),
        (["toy_routing", "--data", "mnist"], "data is 'mnist', which toy_routing does not use"),
        (["toy_routing", "--seeds", "2"], "seeds is 2, which toy_routing does not use"),
        (["kiefer-routing", "--precision", "bf16"], "It takes --batch-size, --data"),
        (["kiefer-routing", "--variants", "routd"], "unknown variant"),
        (["coupling-axis", "--images", "5"], "images is 5, which coupling_axis does not use"),
        (["coupling-axis", "--epochs", "0"], "epochs is 0"),
        (["sparse_inference", "--images", "-1"], "images is -1"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_wrong_use_is_one_line(call, words, message):
    code, _, err = call(*words)
    assert code == 2
    assert message in err and err.count("\n") == 1
    assert not [path for path in Path().rglob("*") if path.is_file()]


def test_what_experiments_heed_can_be_given():
    options = ReproduceOptions.__dataclass_fields__.keys() & {*STUDY_OPTIONS, "images", "minutes"}
    for name, experiment in EXPERIMENTS.items():
        assert experiment.uses <= Settings.__dataclass_fields__.keys() & options, name
        assert (experiment.data is not None) == ("data" in experiment.uses), name


def test_variants_are_chosen_in_the_order_of_the_experiment_and_others_are_refused(tmp_path):
    names = ("none", "at", "vat")
    assert Settings(tmp_path).chosen(names) == [*names]
    assert Settings(tmp_path, variants=("vat", "none")).chosen(names) == ["none", "vat"]
    with pytest.raises(UsageError) as refused:
        Settings(tmp_path, variants=("vta",)).chosen(names)
    assert "'vta'" in str(refused.value) and "variants" in str(refused.value)
