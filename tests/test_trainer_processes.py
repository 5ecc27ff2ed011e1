"""SurpriseTrainer under torchrun: two processes give the result of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from surprise_hf import SurpriseModel
from tests.trainer_data import assert_same, weights

SCRIPT = """
    import json, os, sys
    import torch
    from pathlib import Path
    from tests.trainer_data import make, rows, weights

    encoder, out, batch, every, labels_per_step = sys.argv[1:]
    trainer = make(
        Path(encoder), Path(out), rows(int(every)), rows(), per_device_train_batch_size=int(batch), optim="sgd",
        learning_rate=0.05, labels_per_step=int(labels_per_step),
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        log = [entry["cross_entropy"] for entry in trainer.state.log_history if "cross_entropy" in entry]
        result = {"log": log, "steps": trainer.state.global_step, "loss": metrics["eval_loss"],
                  "world": trainer.args.world_size, "ensemble": len(trainer.model.ensemble)}
        Path(out, "result.json").write_text(json.dumps(result))
"""

OF_TWO_MINDS = """
    import json, os, sys
    from pathlib import Path
    from surprise_hf import self_training
    from tests.trainer_data import TEXTS, make, rows

    encoder, out = sys.argv[1:]
    rank = int(os.environ["RANK"])
    self_training.AGREED, self_training.LABELS, self_training.EXAMPLES = 0.01, 3, 4
    if rank:  # its rounding, say
        real = self_training.joining
        self_training.agreement = lambda *_: 0.0
        self_training.joining = lambda *given: dict(list(real(*given).items())[:1])
    trainer = make(Path(encoder), Path(out), rows(2), trainer={"ensemble": [*TEXTS, "rain"]}, ddp_backend="gloo")
    trainer.train()
    seen = [entry for entry in trainer.state.log_history if "self_training" in entry]
    weights = [float(p.double().sum()) for p in trainer.model.parameters()]
    result = {"seen": seen, "weights": weights, "encoded": trainer.loss.encoded}
    Path(out, f"{rank}.json").write_text(json.dumps(result))
    trainer.accelerator.wait_for_everyone()
    if not rank:
        results = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in (0, 1)]
        Path(out, "result.json").write_text(json.dumps(results))
"""


def run_processes(number: int, encoder: Path, out: Path, *arguments: int, text: str = SCRIPT) -> Any:
    out.mkdir()
    script = out / "script.py"
    script.write_text(textwrap.dedent(text))
    launcher = [] if number == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={number}"]
    root = Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, *launcher, str(script), str(encoder), str(out), *map(str, arguments)],
        check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, timeout=300,
    )  # fmt: skip
    return json.loads((out / "result.json").read_text())


def test_two_processes_give_the_result_of_one(st_path, tmp_path):
    one = run_processes(1, st_path, tmp_path / "one", 12, 1, 2)
    two = run_processes(2, st_path, tmp_path / "two", 6, 1, 2)
    assert (one["world"], two["world"]) == (1, 2)
    assert one["steps"] == two["steps"] == 4
    assert one["log"] == pytest.approx(two["log"], abs=2e-4)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    first, second = (SurpriseModel.from_pretrained(tmp_path / name, device="cpu") for name in ("one", "two"))
    assert_same(weights(first), weights(second), rtol=1e-3, atol=1e-5)
    assert one["ensemble"] == two["ensemble"] == 24


def test_three_examples_on_two_processes(st_path, tmp_path):
    result = run_processes(2, st_path, tmp_path / "two", 8, 8, 3)
    assert result["steps"] == 2
    assert result["ensemble"] == 3


def test_one_process_decides_what_joins_the_examples(st_path, tmp_path):
    """Each has embedded the documents by itself; one that found otherwise would wait for the other for ever."""
    first, second = run_processes(2, st_path, tmp_path / "two", text=OF_TWO_MINDS)
    assert first["seen"] == second["seen"]
    assert [entry["self_training"] > 1 for entry in first["seen"]] == [True]
    assert first["weights"] == pytest.approx(second["weights"], abs=1e-6)
    assert first["encoded"] == second["encoded"]
