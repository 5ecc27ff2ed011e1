"""`surprise-hf train`, in this process, on the tiny encoder."""

from __future__ import annotations

import csv
import re
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from matplotlib import pyplot as plt
from safetensors import SafetensorError
from transformers import TrainerControl, TrainerState

from surprise_hf import SurpriseModel, SurpriseTrainer, cli, cli_training, resuming
from surprise_hf.inputs import name_and_text
from tests.cli_data import in_a_process, interrupt_after, interrupt_clean_up

MORE = [f"{a} {b}" for a in ("red", "one", "cat", "dog") for b in ("vote", "gene")]
ROWS = [(f"{word} {more}", label) for word, label in (("bank", "money"), ("ball", "sport")) for more in MORE]


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("body", "kind")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def train(table: Path, model: Path, out: Path, *more: object) -> int:
    columns = ("--text-column", "body", "--label-column", "kind", "--device", "cpu")
    return cli.main([str(x) for x in ("train", table, *columns, "--model", model, "--out", out, *more)])


@pytest.mark.parametrize("epochs", [2, 0])
def test_train_then_classify(st_path, tmp_path, capsys, epochs):
    table = write(tmp_path / "few.csv", [*ROWS, ("rain snow", "")])
    archive = write(tmp_path / "archive.csv", [(text,) for text, _ in ROWS], ("body",))
    options = ("--epochs", epochs, "--learning-rate", 0.001, "--documents", archive, "--test", table, "--refine", 2)
    assert train(table, st_path, tmp_path / "out", "--template", "about {}", *options) == 0
    out, err = capsys.readouterr()
    assert "2 labels, an ensemble of 16 documents" in err
    assert out.splitlines()[-1].startswith("surprise")
    model = SurpriseModel.from_pretrained(tmp_path / "out", device="cpu")
    assert model.candidate_labels == ["money", "sport"]
    assert model.hypothesis_template == "about {}"
    assert model.fit_options["refine"] == 2
    start = SurpriseModel.from_pretrained(st_path, device="cpu")
    moved = any(not (a == b).all() for a, b in zip(start.parameters(), model.parameters(), strict=True))
    assert moved == (epochs > 0)
    picture = tmp_path / "out" / "training.png"
    assert picture.exists() == (epochs > 0)
    assert not epochs or picture.read_bytes().startswith(b"\x89PNG")
    labelled = tmp_path / "labelled.csv"
    classify = ("classify", archive, "--text-column", "body", "--model", tmp_path / "out", "--device", "cpu")
    assert cli.main([*map(str, classify), "--out", str(labelled)]) == 0
    with labelled.open(encoding="utf-8") as file:
        found = [row["label"] for row in csv.DictReader(file)]
    right = sum(label == target for label, (_, target) in zip(found, ROWS, strict=True)) / len(ROWS)
    assert out.splitlines()[-1].split()[2] == f"{right:.3f}"


def test_train_goes_on_with_documents(st_path, tmp_path, capsys, monkeypatch):
    """Self-training, where it says so: here from any agreement on, with any number of labels and examples."""
    for limit in ("AGREED", "LABELS", "EXAMPLES"):
        monkeypatch.setattr(f"surprise_hf.self_training.{limit}", 0)
    table = write(tmp_path / "few.csv", ROWS)
    more = [f"{text}{end}" for text, _ in ROWS for end in ("", " noon", " one")]
    archive = write(tmp_path / "archive.csv", [(text,) for text in more], ("body",))
    assert train(table, st_path, tmp_path / "out", "--epochs", 1, "--documents", archive) == 0
    out, err = capsys.readouterr()
    assert not out
    (joined,) = re.findall(r"^.*went on for an epoch with (\d+) of the documents", err, flags=re.MULTILINE)
    assert 0 < int(joined) <= len(more) - len(ROWS)  # none of the examples


def test_wrong_arguments(st_path, tmp_path, capsys):
    table = write(tmp_path / "few.csv", ROWS)
    for more, code, words in (
        (("--label-column", "none"), 1, "has no column 'none'"),
        (("--labels", "money,music"), 1, "row 8 has the label 'sport'"),
        (("--epochs", "-1"), 2, "--epochs must be 0 or more"),
        (("--test", tmp_path / "x.txt"), 2, "name it .csv"),
        (("--out", tmp_path / "no" / "where"), 1, "no such folder"),
        (("--out", table), 1, "is a file"),
    ):
        assert train(table, st_path, tmp_path / "out", *more) == code
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("refine", [4, 0])
def test_options_reach_the_trainer(st_path, tmp_path, monkeypatch, refine):
    seen = {}

    def trainer(model, args, rows, **kind):
        seen.update(kind, model=model, args=args, rows=rows)
        raise ValueError

    monkeypatch.setattr(resuming, "ResumableTrainer", trainer)
    table = write(tmp_path / "few.csv", ROWS)
    options = ("--epochs", 7, "--learning-rate", 0.002, "--train-batch-size", 3, "--batch-size", 5, "--seed", 9)
    more = ("--refine", refine, "--template", "on {}", "--labels", "sport,money,music", "--prompt", "query: ")
    assert train(table, st_path, tmp_path / "out", *options, *more) == 1
    args = seen["args"]
    assert (args.num_train_epochs, args.learning_rate, args.seed, args.refine) == (7, 0.002, 9, refine)
    assert (args.per_device_train_batch_size, args.per_device_eval_batch_size) == (3, 5)
    assert (seen["labels"], seen["hypothesis_template"]) == (["sport", "money", "music"], "on {}")
    assert seen["model"]._default_prompt == "query: "


def test_what_makes_another_run(tmp_path, monkeypatch):
    """All that the result depends on: a kept checkpoint of another run is not gone on from."""
    seen = []

    def begin(_, identity):
        seen.append(identity)
        raise ValueError

    monkeypatch.setattr(resuming, "begin", begin)
    table, archive = write(tmp_path / "few.csv", ROWS), write(tmp_path / "more.csv", ROWS[3:])
    both = write(tmp_path / "both.csv", [(*row, *row) for row in ROWS], ("body", "kind", "body2", "kind2"))
    out = tmp_path / "out"
    assert train(both, "model", out) == 1
    for name, *options in (
        ("text column", "--text-column", "body2"),
        ("label column", "--label-column", "kind2"),
        ("labels", "--labels", "sport,money"),
        ("model", "--model", "other"),
        ("prompt", "--prompt", "query: "),
        ("template", "--template", "on {}"),
        ("epochs", "--epochs", 3),
        ("learning rate", "--learning-rate", 0.01),
        ("train batch size", "--train-batch-size", 2),
        ("seed", "--seed", 1),
        ("input", "--documents", archive),
    ):
        assert train(both, "model", out, *options) == 1
        assert [key for key, value in seen[0].items() if seen[-1][key] != value] == [name]
    assert train(table, "model", out) == 1
    assert seen[-1] == {**seen[0], "input": seen[-1]["input"]} != seen[0]


def test_a_progress_bar_leaves_standard_output_to_the_results(st_path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    table = write(tmp_path / "few.csv", ROWS)
    assert train(table, st_path, tmp_path / "out", "--epochs", 2, "--test", table) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["cosine", "surprise"]
    assert "it/s" in err


def test_another_gpu_than_the_first_is_refused(st_path, tmp_path, capsys, monkeypatch):
    """Which the arguments of a Trainer would take, whatever the model is on."""
    pipe = Mock(device=torch.device("cuda", 1))
    monkeypatch.setattr(cli_training, "load_pipeline", lambda _: pipe)
    assert train(write(tmp_path / "few.csv", ROWS), st_path, tmp_path / "out") == 2
    assert "CUDA_VISIBLE_DEVICES=1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_test_set_may_have_gaps(st_path, tmp_path, capsys):
    """A document without text counts as it is labelled; without any label there is nothing to tell."""
    table = write(tmp_path / "few.csv", ROWS)
    gaps = write(tmp_path / "gaps.csv", [("bank vote", "money"), ("", "sport"), ("ball gene", "")])
    none = write(tmp_path / "none.csv", [("bank vote", ""), ("ball vote", "")])
    for test, told in ((gaps, ["cosine", "surprise"]), (none, [])):
        assert train(table, st_path, tmp_path / "out", "--epochs", 0, "--test", test) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == told
        report = SurpriseModel.from_pretrained(tmp_path / "out", device="cpu").report
        assert bool(report.get("results")) == bool(told)


def test_a_checkpoint_at_most_every_minute(monkeypatch):
    """After an epoch that is not the last one; a training that stops needs none."""
    now = [0.0]
    monkeypatch.setattr(resuming.time, "monotonic", lambda: now[0])
    saver, state = resuming.SaveNowAndThen(), TrainerState(num_train_epochs=4)
    saved = []
    seen = ((59, 1, False), (61, 1, True), (61, 2, False), (120, 3, False), (122, 3, False), (999, 4, False))
    for at, epoch, stops in seen:
        now[0], state.epoch = at, epoch
        saved.append(saver.on_epoch_end(None, state, TrainerControl(should_training_stop=stops)).should_save)
    assert saved == [False, False, True, False, True, False]


def test_the_last_checkpoint_is_that_of_the_most_steps(tmp_path):
    for step in (10, 100, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / resuming.STATE).write_text("{}")
    assert resuming.last_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


@pytest.mark.parametrize("epochs", [2, 0])
def test_a_wrong_test_set_is_refused_before_training(st_path, tmp_path, capsys, monkeypatch, epochs):
    table = write(tmp_path / "few.csv", ROWS)
    test = write(tmp_path / "test.csv", [("bank vote", "money"), ("ball vote", "music")])
    monkeypatch.setattr(cli_training, "load_pipeline", None)
    assert train(table, st_path, tmp_path / "out", "--epochs", epochs, "--test", test) == 1
    err = capsys.readouterr().err
    assert f"{test}: row 1 has the label 'music'" in err
    assert "--labels" in err


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize(
    ("steps", "where", "kept"),
    [
        (6, (SurpriseTrainer, "training_step"), True),
        (2, (SurpriseTrainer, "training_step"), False),
        (0, (SurpriseModel, "record_results"), True),
    ],
)
def test_what_is_trained_is_kept(st_path, tmp_path, capsys, monkeypatch, error, steps, where, kept):
    """16 rows, 4 a step: the first epoch ends with step 4."""
    table, out = write(tmp_path / "few.csv", ROWS), tmp_path / "out"
    interrupt_after(monkeypatch, *where, steps, error)
    options = ("--epochs", 3, "--train-batch-size", 4, "--learning-rate", 0.001, "--test", table)
    assert train(table, st_path, out, *options) == (130 if error is KeyboardInterrupt else 1)
    err = capsys.readouterr().err
    assert out.exists() == kept
    assert not Path(f"{out}.partial").exists()
    if not kept:
        assert error is RuntimeError or "interrupted; nothing was written" in err
        return
    assert "saving the model as it is" in err
    if error is KeyboardInterrupt:
        assert f"interrupted; {out} holds the model" in err
    model = SurpriseModel.from_pretrained(out, device="cpu")
    start = SurpriseModel.from_pretrained(st_path, device="cpu")
    assert any(not (a == b).all() for a, b in zip(start.parameters(), model.parameters(), strict=True))
    assert model.candidate_labels == ["money", "sport"]
    assert len(model.ensemble) == len(ROWS)
    texts = [text for text, _ in ROWS]
    again = model.fitted.score(model.embed(texts)[0])
    assert (again.argmax(dim=1) == torch.tensor([0] * 8 + [1] * 8)).float().mean() > 0.8


KILLED = """
import os, signal
from surprise_hf import SurpriseTrainer, resuming
resuming.SECONDS = 0.0
step, when = SurpriseTrainer.training_step, int(sys.argv.pop(1))
def one(self, *args, **kwargs):
    if self.state.global_step == when:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, *args, **kwargs)
SurpriseTrainer.training_step = one
"""


def test_a_killed_run_goes_on_to_the_same_result(st_path, tmp_path, capsys, monkeypatch):
    """4 steps an epoch: killed in the third, from the checkpoint of the second; half-written ones do not count."""
    monkeypatch.chdir(tmp_path)
    table = write(Path("few.csv"), ROWS)
    options = ("--epochs", 4, "--train-batch-size", 4, "--learning-rate", 0.001)
    assert train(table, st_path, Path("whole"), *options) == 0
    command = ("--text-column", "body", "--label-column", "kind", "--device", "cpu", "--model", st_path, "--out", "out")
    done = in_a_process(KILLED, *map(str, (10, "train", table, *command, *options)))
    assert done.returncode == -9
    partial = Path("out.partial")
    assert not Path("out").exists()
    assert sorted(path.name for path in partial.iterdir()) == ["checkpoint-8", "job.json"]
    assert not (partial / "checkpoint-8" / "surprise").exists()
    for name in ("checkpoint-12", "checkpoint-16", "checkpoint-more"):
        (partial / name).mkdir()
    (partial / "checkpoint-12" / resuming.STATE).write_text('{"epoch": 3')
    assert resuming.last_checkpoint(partial) == partial / "checkpoint-8"
    capsys.readouterr()
    assert train(table, st_path, Path("out"), *options) == 0
    err = capsys.readouterr().err
    assert "going on from out.partial/checkpoint-8" in err
    assert not partial.exists()
    one, other = (SurpriseModel.from_pretrained(name, device="cpu") for name in ("whole", "out"))
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(one.fitted.queries, other.fitted.queries)
    assert len(other.ensemble) == len(ROWS)


def test_another_run_does_not_go_on_from_it(st_path, tmp_path, capsys):
    table, out, partial = write(tmp_path / "few.csv", ROWS), tmp_path / "out", tmp_path / "out.partial"
    (partial / "checkpoint-3").mkdir(parents=True)
    (partial / "checkpoint-3" / resuming.STATE).write_text("{}")
    assert train(table, st_path, out, "--epochs", 1) == 1
    assert "out.partial is where checkpoints go, and holds something else" in " ".join(capsys.readouterr().err.split())
    (partial / "rows.ends").touch()  # of another command
    (partial / "job.json").write_text("{}")
    assert train(table, st_path, out, "--epochs", 1) == 1
    assert "holds something else" in " ".join(capsys.readouterr().err.split())
    for name in ("rows.ends", "job.json"):
        (partial / name).unlink()
    (partial / "job.json").write_text('{"seed": 1}')
    assert train(table, st_path, out, "--epochs", 1) == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "holds a run with another epochs, input," in err
    assert "repeat that command, or remove that folder to start anew" in err
    assert (partial / "checkpoint-3").exists()
    (partial / "checkpoint-3" / resuming.STATE).unlink()  # not written to its end: nothing is lost
    assert train(table, st_path, out, "--epochs", 1) == 0
    assert not partial.exists()


def test_a_short_run_writes_no_checkpoint(st_path, tmp_path, monkeypatch):
    table = write(tmp_path / "few.csv", ROWS)
    monkeypatch.setattr(resuming.ResumableTrainer, "_save_checkpoint", None)
    assert train(table, st_path, tmp_path / "out", "--epochs", 3) == 0
    assert not (tmp_path / "out.partial").exists()


def test_a_checkpoint_that_cannot_be_written_stops_nothing(st_path, tmp_path, capsys, monkeypatch):
    table = write(tmp_path / "few.csv", ROWS)
    monkeypatch.setattr(resuming, "SECONDS", 0.0)
    interrupt_after(monkeypatch, SurpriseTrainer, "_save_optimizer_and_scheduler", 0, OSError)
    assert train(table, st_path, tmp_path / "out", "--epochs", 3, "--learning-rate", 1e-5) == 0
    assert "no checkpoint was written (disk full); the training goes on without" in capsys.readouterr().err
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("error", [OSError, RuntimeError, SafetensorError])
def test_whatever_says_that_it_cannot(monkeypatch, error):
    """A full disk is an OSError to Python, a RuntimeError to torch, and one of its own to safetensors."""
    monkeypatch.setattr(SurpriseTrainer, "_save_checkpoint", Mock(side_effect=error("disk full")))
    trainer = object.__new__(resuming.ResumableTrainer)
    with pytest.warns(UserWarning, match=r"no checkpoint was written \(disk full\)"):
        trainer._save_checkpoint(None, None)


def test_an_interrupted_run_tells_that_it_can_go_on(st_path, tmp_path, capsys, monkeypatch):
    table, out = write(tmp_path / "few.csv", ROWS), tmp_path / "out"
    monkeypatch.setattr(resuming, "SECONDS", 0.0)
    options = ("--epochs", 3, "--train-batch-size", 4, "--learning-rate", 1e-5)
    with monkeypatch.context() as patch:
        interrupt_after(patch, SurpriseTrainer, "training_step", 6, KeyboardInterrupt)
        assert train(table, st_path, out, *options) == 130
    err = capsys.readouterr().err
    assert f"the same command goes on from what {out}.partial holds" in err
    assert f"interrupted; {out} holds the model as far as it was trained" in err
    assert train(table, st_path, out, *options) == 0
    assert f"going on from {out}.partial/checkpoint-4" in capsys.readouterr().err
    assert not Path(f"{out}.partial").exists()


def test_an_interrupted_clean_up_leaves_no_half_of_the_checkpoints(st_path, tmp_path, capsys, monkeypatch):
    table, out = write(tmp_path / "few.csv", ROWS), tmp_path / "out"
    monkeypatch.setattr(resuming, "SECONDS", 0.0)
    options = ("--epochs", 2, "--train-batch-size", 8, "--learning-rate", 1e-5)
    figures = plt.get_fignums()
    with monkeypatch.context() as patch:
        interrupt_clean_up(patch)
        assert train(table, st_path, out, *options) == 130
    assert f"interrupted; {out} holds the model" in capsys.readouterr().err
    assert not Path(f"{out}.partial").exists()
    assert SurpriseModel.from_pretrained(out, device="cpu").candidate_labels == ["money", "sport"]
    assert (out / "training.png").exists()
    assert plt.get_fignums() == figures  # the picture is not kept in memory
    assert train(table, st_path, out, *options) == 0


@pytest.mark.parametrize("inside", [True, False])
def test_it_does_not_go_on_from_another_model(st_path, tmp_path, capsys, monkeypatch, inside):
    """OUT in the model's own folder is no part of the model."""
    table, model = write(tmp_path / "few.csv", ROWS), tmp_path / "model"
    shutil.copytree(st_path, model)
    out = model / "out" if inside else tmp_path / "out"
    monkeypatch.setattr(resuming, "SECONDS", 0.0)
    options = ("--epochs", 3, "--train-batch-size", 4, "--learning-rate", 1e-5)
    with monkeypatch.context() as patch:
        interrupt_after(patch, SurpriseTrainer, "training_step", 6, KeyboardInterrupt)
        assert train(table, model, out, *options) == 130
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"hidden_act": "gelu"', '"hidden_act": "relu"'))
    assert train(table, model, out, *options) == 1
    assert f"{out}.partial holds a run with another model: repeat" in " ".join(capsys.readouterr().err.split())
    (model / "config.json").write_text(config)
    assert train(table, model, out, *options) == 0
    assert f"going on from {out}.partial/checkpoint-4" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", [1, 0])
def test_numbers_with_names(st_path, tmp_path, capsys, epochs):
    """A table that `datasets` wrote knows what its labels' numbers stand for; the test set may count otherwise."""
    tables = {}
    for name, names in (("few", ["money", "sport"]), ("test", ["sport", "money"])):
        features = Features({"body": Value("string"), "kind": ClassLabel(names=names)})
        rows = [{"body": text, "kind": names.index(label)} for text, label in ROWS]
        tables[name] = tmp_path / f"{name}.parquet"
        Dataset.from_list(rows, features=features).to_parquet(tables[name])
    shown = []
    for test in tables.values():
        assert train(tables["few"], st_path, tmp_path / "out", "--epochs", epochs, "--refine", 0, "--test", test) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert float(shown[0].split()[-1]) > 0.6
    assert SurpriseModel.from_pretrained(tmp_path / "out", device="cpu").candidate_labels == ["money", "sport"]


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["['money']", '["sport", "money"]', "[]", ""], ["money", "sport"]),
        (["['money' 'sport']", "['sport']"], ["['money' 'sport']", "['sport']"]),  # as numpy writes two
        (["['money']", "sport", "", "[]"], ["money", "sport"]),
        (["[]", "sport", "money"], ["money", "sport"]),
        (["['money' 'sport']", "['sport']", "sport"], ["['money' 'sport']", "['sport']", "sport"]),
        (["[1, 2]", "[money]"], ["[1, 2]", "[money]"]),
        (["money", "sport"], ["money", "sport"]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_lists_in_a_file_of_text(st_path, tmp_path, cells, labels, suffix):
    texts = ["bank red", "ball one", "rain dog", "cat gene"]
    lines = [("body", "kind"), *zip(texts, cells, strict=False)]
    table = tmp_path / f"few.{suffix}"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="," if suffix == "csv" else "\t").writerows(lines)
    assert train(table, st_path, tmp_path / "out", "--epochs", 0, "--test", table) == 0
    assert SurpriseModel.from_pretrained(tmp_path / "out", device="cpu").candidate_labels == labels


@pytest.mark.parametrize("epochs", [1, 0])
@pytest.mark.parametrize(("options", "texts"), [((), ["money", "a ball game"]), (("--labels", "sport,money"), None)])
def test_descriptions_that_a_model_stores_stay(st_path, tmp_path, epochs, options, texts):
    """Unless the labels are given, as names."""
    model = SurpriseModel.from_pretrained(st_path, device="cpu").set_labels({"sport": "a ball game", "rain": "snow"})
    model.save_pretrained(tmp_path / "described")
    table = write(tmp_path / "few.csv", ROWS)
    assert train(table, tmp_path / "described", tmp_path / "out", "--epochs", epochs, *options) == 0
    labels = SurpriseModel.from_pretrained(tmp_path / "out", device="cpu").candidate_labels
    names = ["sport", "money"] if options else ["money", "sport"]
    assert [name_and_text(label) for label in labels] == list(zip(names, texts or names, strict=True))


@pytest.mark.parametrize("epochs", [1, 0])
def test_a_model_that_cannot_be_written_is_told_of(st_path, tmp_path, capsys, monkeypatch, epochs):
    def full(*_, **__):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(SurpriseModel, "save_pretrained", full)
    table, out = write(tmp_path / "few.csv", ROWS), tmp_path / "out"
    assert train(table, st_path, out, "--epochs", epochs) == 1
    err = capsys.readouterr().err
    assert "No space left" in err
    assert f"{out} could not be written: what is there is no whole model" in err
