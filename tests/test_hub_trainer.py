"""What a SurpriseTrainer pushes while it trains and after it, to a Hub of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surprise_hf.model_card import MARK
from tests.hub_server import TOKEN, Hub

ROOT = Path(__file__).parents[1]

SCRIPT = """
import sys, warnings
from pathlib import Path
from huggingface_hub import HfApi, hf_hub_download
from surprise_hf import SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments
from surprise_hf.model_card import MARK

where, folder, token = sys.argv[1:]
warnings.simplefilter("ignore")
ROWS = [{"text": f"{a} {b}", "label": a} for a in ("sport", "bank") for b in ("red", "one", "vote", "gene")]

def trainer(strategy, name, **more):
    options = SurpriseTrainingArguments(
        output_dir=f"{folder}/{name}", push_to_hub=True, hub_model_id=f"me/{name}", hub_strategy=strategy,
        hub_token=token, hub_always_push=True, num_train_epochs=1, save_strategy="epoch", report_to="none",
        use_cpu=True, disable_tqdm=True, stop_cross_entropy=None, **more,
    )
    return SurpriseTrainer(SurpriseModel(where, device="cpu"), options, ROWS)

def edit(name):
    text = Path(hf_hub_download(name, "README.md")).read_text().replace(MARK, "My own words.")
    HfApi().upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=name)

for strategy in ("checkpoint", "all_checkpoints", "every_save"):
    trainer(strategy, strategy).train()
edit("me/every_save")
again = trainer("every_save", "every_save", learning_rate=1e-3)  # so that there is something to send
again.train()
again.push_to_hub(tags=["mine"], language="en")
fresh = trainer("end", "fresh")
fresh.train()
fresh.push_to_hub(tags="mine", language="en", license="mit")
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory, st_path):
    folder = tmp_path_factory.mktemp("hub")
    with Hub() as server:
        env = {**os.environ, "PYTHONPATH": str(ROOT), **server.environment(folder / "cache")}
        command = [sys.executable, "-c", SCRIPT, str(st_path), str(folder), TOKEN]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        yield server


@pytest.mark.parametrize(("name", "beside"), [("checkpoint", "last-checkpoint"), ("all_checkpoints", "checkpoint-1")])
def test_what_resuming_needs_goes_beside_and_the_token_nowhere(hub, name, beside):
    files = hub.repos["model", f"me/{name}"].files()
    assert {f"{beside}/trainer_state.json", f"{beside}/optimizer.pt", f"{beside}/model.safetensors"} <= set(files)
    assert {"README.md", "model.safetensors", "surprise/config.json"} <= set(files)
    assert not [path for path in files if "/" not in path and Path(path).suffix in (".bin", ".pt", ".pth")]
    for repo in hub.repos.values():
        for commit in repo.commits.values():
            assert not [path for path, file in commit.items() if TOKEN.encode() in file.data]
            assert not [path for path in commit if path.endswith("training_args.bin")]


def test_a_card_edited_on_the_hub_stays(hub):
    """Through a push while it trains, and one after it."""
    card = hub.repos["model", "me/every_save"].files()["README.md"].data.decode()
    assert "My own words." in card
    assert MARK not in card
    assert len(hub.repos["model", "me/every_save"].commits) > 3  # none, trained, edited, trained


def test_what_the_push_says_is_in_the_card(hub):
    card = hub.repos["model", "me/fresh"].files()["README.md"].data.decode()
    assert MARK in card
    assert "language: en" in card or "language:\n- en" in card
    assert "- mine\n" in card
    assert "license: mit" in card
