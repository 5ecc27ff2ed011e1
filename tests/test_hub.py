"""Round trips through a Hub: one process pushes, others load by name, with nothing in common but the Hub.

Every client is a process of its own, with a cache of its own, and its environment set before any Hugging Face library
is imported (cases.md 22-25).
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub_server import Hub

ROOT = Path(__file__).parents[1]

COMMON = """
import json, sys, warnings
warnings.simplefilter("ignore")
where, *args = sys.argv[1:]
DOCUMENTS = [f"{a} {b} {c}" for a in ("sport", "bank", "rain", "dog") for b in ("red", "one") for c in ("vote", "gene")]
LABELS, OTHERS = ["sport", "money", "animal"], ["music", "weather"]

def scores(pipe):
    return [pipe(DOCUMENTS), pipe("dog cat"), pipe("dog cat", OTHERS), pipe(DOCUMENTS[:3], OTHERS, surprise_weight=1)]

def failure(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
"""

AUTHOR = """
import compileall, huggingface_hub, os, shutil, tempfile, torch, transformers
import surprise_hf
from surprise_hf import SurpriseModel, SurpriseTrainer, SurpriseTrainingArguments, hub
from surprise_hf.metrics import path

found = {}
def pipeline(model):
    return transformers.pipeline("surprise-zero-shot", model=model, device="cpu")

# a model, pushed twice
model = SurpriseModel(where, device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS)
model.record_results("a test set", {"accuracy": 0.75}, split="test")
found["model"] = scores(pipeline(model))
model.push_to_hub("me/model", remote_code=True)
model.push_to_hub("me/model", exist_ok=True, remote_code=True)
model.push_to_hub("me/moved", remote_code=True)

# the same with other labels, on a branch; a private one; one whose card is someone's own
model.set_labels(OTHERS, "about {}", weight=1.0)
found["branch"] = scores(pipeline(model))
model.push_to_hub("me/model", exist_ok=True, revision="v2")
model.push_to_hub("me/moved", exist_ok=True)  # whose other branch stays
model.push_to_hub("me/secret", private=True)

# an encoder and nothing else
SurpriseModel(where, device="cpu").push_to_hub("me/encoder")

# a pipeline without labels
pipe = pipeline(SurpriseModel(where, device="cpu")).fit_ensemble(DOCUMENTS)
found["pipe"] = pipe(DOCUMENTS, LABELS)
pipe.push_to_hub("me/pipe")
with tempfile.TemporaryDirectory() as folder:
    pipe.save_pretrained(folder, push_to_hub=True, repo_id="me/saved-pipe", private=True)

# ensembles alone
ensemble = model.ensemble
ensemble.encoder = "me/model"
ensemble.push_to_hub("me/ensemble")
ensemble.push_to_hub("me/whole", reservoir=True, private=True)
other = surprise_hf.Ensemble.from_embeddings(torch.eye(32))
other.push_to_hub("me/ensemble", revision="v2")
found["moments of v2"] = [x.tolist() for x in other.moments(torch.eye(32)[:4])]
found["moments"] = [x.tolist() for x in ensemble.moments(torch.eye(32)[:4])]

# what is taken away or changed between two pushes; names without an owner; a card that someone edited
again = SurpriseModel(where, device="cpu").fit_ensemble(DOCUMENTS).set_labels(LABELS)
again.push_to_hub("me/bare")
again.push_to_hub("me/no-ensemble")
again.push_to_hub("again")
again.set_labels(OTHERS)
again.push_to_hub("again", exist_ok=True)
again.set_labels(["only here"])
again.push_to_hub("again", None, None, True, None, None, True, revision="v2", remote_code=True)
again.set_ensemble(None)
again.push_to_hub("me/no-ensemble", exist_ok=True)
again.set_labels(None)
again.push_to_hub("me/bare", exist_ok=True)
other.push_to_hub("edited")
huggingface_hub.HfApi().upload_file(path_or_fileobj=b"# mine", path_in_repo="README.md", repo_id="me/edited")
other.update(torch.eye(32)).push_to_hub("edited", exist_ok=True)

# a folder with sharded weights, inside a larger repository
folder = args[0]
model.save_pretrained(f"{folder}/inner/model")
transformers.AutoModel.from_pretrained(where).save_pretrained(f"{folder}/inner/model", max_shard_size="20KB")
os.remove(f"{folder}/inner/model/model.safetensors")
assert len([name for name in os.listdir(f"{folder}/inner/model") if name.startswith("model-0")]) > 2
hub.upload(folder, "me/large")

# damaged and foreign files
model.save_pretrained(f"{folder}/broken")
with open(f"{folder}/broken/surprise/labels.safetensors", "wb") as file:
    file.write(b"nonsense")
hub.upload(f"{folder}/broken", "me/broken")
with open(f"{folder}/broken/surprise/config.json", "w") as file:
    file.write('{"made": "elsewhere"}')
hub.upload(f"{folder}/broken", "me/foreign")

# fine-tuned, pushed while it trains and after it
rows = [{"text": text, "label": LABELS[i % 3]} for i, text in enumerate(DOCUMENTS)]
options = SurpriseTrainingArguments(
    output_dir=f"{folder}/trained", push_to_hub=True, hub_model_id="me/trained", hub_strategy="every_save",
    num_train_epochs=2, save_strategy="epoch", report_to="none", use_cpu=True, per_device_train_batch_size=8,
    disable_tqdm=True, stop_cross_entropy=None,
)
trainer = SurpriseTrainer(SurpriseModel(where, device="cpu"), options, rows, labels=LABELS)
untrained = SurpriseModel(where, device="cpu").embed(DOCUMENTS)[0]
trainer.train()
found["moved"] = float((trainer.model.embed(DOCUMENTS)[0] - untrained).abs().max())
trainer.push_to_hub()
found["trained"] = scores(pipeline(trainer.model))

metric = shutil.copytree(path("surprise_clustering"), f"{folder}/surprise_clustering")
compileall.compile_dir(metric, quiet=1)  # as pip leaves it
hub.upload(metric, "me/surprise_clustering", repo_type="space", space_sdk="gradio")
print(json.dumps(found))
"""

COLLEAGUE = """
import contextlib, huggingface_hub, io, torch, transformers
from transformers import AutoModel, AutoTokenizer
import surprise_hf
from sentence_transformers import SentenceTransformer
from surprise_hf import Ensemble, SurpriseModel

found = {}
def pipeline(name, **kwargs):
    return transformers.pipeline("surprise-zero-shot", model=name, device="cpu", **kwargs)

found["model"] = scores(pipeline("me/model"))
found["branch"] = scores(pipeline("me/model", revision="v2"))
found["trained"] = scores(pipeline("me/trained"))
found["pipe"] = pipeline("me/pipe")(DOCUMENTS, LABELS)
found["saved pipe"] = pipeline("me/saved-pipe")(DOCUMENTS, LABELS)
found["secret"] = scores(pipeline("me/secret"))
found["moments"] = [x.tolist() for x in Ensemble.from_pretrained("me/ensemble").moments(torch.eye(32)[:4])]
of_v2 = Ensemble.from_pretrained("me/ensemble", revision="v2")
found["moments of v2"] = [x.tolist() for x in of_v2.moments(torch.eye(32)[:4])]
found["rows"] = [len(Ensemble.from_pretrained(name).reservoir) for name in ("me/ensemble", "me/whole", "me/model")]

own = SurpriseModel.from_pretrained("me/model", device="cpu").embed(DOCUMENTS)[0]
plain = SentenceTransformer("me/model", device="cpu").encode(DOCUMENTS, convert_to_tensor=True)
backbone, tokens = AutoModel.from_pretrained("me/model"), AutoTokenizer.from_pretrained("me/model")(
    DOCUMENTS[:1], return_tensors="pt")
hidden = backbone(**tokens).last_hidden_state.mean(dim=1)
found["encoders"] = [torch.equal(own, plain), torch.allclose(hidden, own[:1], atol=1e-5)]

for name in ("model", "ensemble", "trained"):  # every snippet of its card, here
    card = open(huggingface_hub.hf_hub_download(f"me/{name}", "README.md")).read()
    scope, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for snippet in card.split("```python")[1:]:
            exec(snippet.split("```")[0], scope)
    found[f"card of {name}"] = printed.getvalue().splitlines(), len(scope.get("ensemble") or scope["embeddings"])

if "offline" not in args:
    large = SurpriseModel.from_pretrained("me/large", subfolder="inner/model", device="cpu")
    found["large"] = scores(transformers.pipeline("surprise-zero-shot", device="cpu", model=large))
    found["model kwargs"] = scores(pipeline("me/large", model_kwargs={"subfolder": "inner/model"}))
    found["errors"] = [
        failure(SurpriseModel.from_pretrained, "me/broken"),
        failure(SurpriseModel.from_pretrained, "me/foreign"),
        failure(SurpriseModel.from_pretrained, "me/absent"),
        failure(pipeline, "me/broken"),
        failure(Ensemble.from_pretrained, "me/surprise_clustering"),
        failure(SurpriseModel.from_pretrained, "me/large", subfolder="nowhere"),
        failure(SurpriseModel.from_pretrained, "me/model", revision="v9"),
        failure(Ensemble.from_pretrained, "me/whole", dim=7),
        failure(Ensemble.from_pretrained, "me/large"),
    ]
    # pushed again as it was loaded: nothing to send
    SurpriseModel.from_pretrained("me/model", device="cpu").push_to_hub("me/model", exist_ok=True)

import evaluate
found["metric"] = evaluate.load("me/surprise_clustering").compute(predictions=[0, 1], references=[0, 1])["v_measure"]
print(json.dumps(found))
"""

STRANGER = """
import sys
sys.modules["surprise_hf"] = None
import transformers
found = {"unknown": failure(transformers.pipeline, "surprise-zero-shot", model="me/model")}
found["untrusted"] = failure(transformers.pipeline, "surprise-zero-shot", model="me/model", revision="remote-code")
pipe = transformers.pipeline("surprise-zero-shot", model="me/model", revision="remote-code", trust_remote_code=True)
found["model"] = scores(pipe)
found["moved"] = scores(
    transformers.pipeline("surprise-zero-shot", model="me/moved", revision="remote-code", trust_remote_code=True))
found["refused"] = failure(transformers.AutoModel.from_pretrained, "me/secret")
found["loaded"] = sorted({"sentence_transformers", "datasets"} & set(sys.modules))
print(json.dumps(found))
"""

UNINVITED = """
import surprise_hf, transformers
from surprise_hf import Ensemble, SurpriseModel
names = ("me/secret", "me/absent")
print(json.dumps({
    "model": [failure(SurpriseModel.from_pretrained, name) for name in names],
    "ensemble": [failure(Ensemble.from_pretrained, name) for name in ("me/whole", "me/absent")],
    "token": len(Ensemble.from_pretrained("me/whole", token=args[0]).reservoir),
    "model by token": SurpriseModel.from_pretrained("me/secret", token=args[0], device="cpu").candidate_labels,
    "pipeline by token": scores(transformers.pipeline("surprise-zero-shot", model="me/secret", token=args[0])),
}))
"""


ALONE = """
import socket

def refuse(*args, **kwargs):
    raise AssertionError(f"a connection to {args}")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import surprise_hf, transformers
from sentence_transformers import SentenceTransformer
from surprise_hf import Ensemble, SurpriseModel

model = SurpriseModel.from_pretrained(where, device="cpu")
found = {
    "pipeline": scores(transformers.pipeline("surprise-zero-shot", model=where, device="cpu")),
    "model": scores(transformers.pipeline("surprise-zero-shot", model=model)),
    "rows": len(Ensemble.from_pretrained(where).reservoir),
    "plain": len(SentenceTransformer(where, device="cpu").encode("dog")),
    "elsewhere": failure(SurpriseModel.from_pretrained, "me/model"),
}
print(json.dumps(found))
"""


DOUBTFUL = """
import surprise_hf
from sentence_transformers import SentenceTransformer
from surprise_hf import SurpriseModel
opened = SentenceTransformer if args[0] == "plain" else SurpriseModel.from_pretrained
print(json.dumps({name: failure(opened, f"me/{name}", device="cpu") for name in ("model", "encoder")}))
"""


def client(code: str, environment: dict[str, str], *args: object) -> Any:
    """What a fresh process prints last."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", COMMON + code, *map(str, args)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["lfs", "plain"])
def pushed(request, st_path, tmp_path_factory):
    """A Hub with everything on it, what was sent to it at each step, and the author's scores."""
    with Hub(lfs=request.param == "lfs") as hub:
        folder = tmp_path_factory.mktemp("author")
        answers = client(AUTHOR, hub.environment(folder / "cache"), st_path, folder / "a folder")
        yield hub, answers


@pytest.fixture(scope="module")
def colleague(pushed, tmp_path_factory):
    hub, _ = pushed
    cache = tmp_path_factory.mktemp("colleague")
    before = list(hub.sent())
    answers = client(COLLEAGUE, hub.environment(cache), "-")
    return answers, cache, before, list(hub.sent())


def test_a_colleague_gets_the_very_same_answers(pushed, colleague):
    _, author = pushed
    found, *_ = colleague
    for name in ("model", "branch", "pipe", "trained", "moments", "moments of v2"):
        assert found[name] == author[name], name
    assert found["saved pipe"] == author["pipe"]
    assert author["moved"] > 1e-3  # training did something
    assert author["trained"] != author["model"]
    assert author["moments"] != author["moments of v2"]
    assert found["secret"] == found["large"] == found["model kwargs"] == author["branch"]
    assert author["model"] != author["branch"]
    assert found["encoders"] == [True, True]


def test_what_ensembles_hold(pushed, colleague):
    hub, _ = pushed
    assert colleague[0]["rows"] == [0, 16, 16]
    assert hub.repos["model", "me/whole"].private
    card = hub.repos["model", "me/ensemble"].files()["README.md"].data.decode()
    assert "16 documents, 32 dimensions, by me/model, and no embedding of any one of them" in card
    assert 'Ensemble.from_pretrained("me/ensemble")' in card


def test_a_push_takes_away_what_the_model_no_longer_has(pushed):
    hub, _ = pushed
    held = {name: set(hub.repos["model", f"me/{name}"].files()) for name in ("bare", "no-ensemble", "again")}
    of_us = {f"surprise/{name}" for name in ("config.json", "labels.safetensors", "ensemble.safetensors")}
    assert held["again"] & of_us == of_us
    assert held["no-ensemble"] & of_us == of_us - {"surprise/ensemble.safetensors"}
    assert held["bare"] & of_us == set()


def test_a_card_tells_of_what_was_pushed_with_it(pushed):
    hub, _ = pushed
    repo = hub.repos["model", "me/again"]
    labels = {
        "main": "2: `music`, `weather`",
        "v2": "1: `only here`",
        "v2-remote-code": "1: `only here`",
    }
    assert set(repo.branches) == set(labels)
    for branch, named in labels.items():
        files = repo.files(branch)
        assert named in files["README.md"].data.decode()
        assert ("surprise_remote.py" in files) == branch.endswith("remote-code")


def test_an_edited_card_of_an_ensemble_stays(pushed):
    files = pushed[0].repos["model", "me/edited"].files()
    assert files["README.md"].data == b"# mine"
    assert set(files) == {"README.md", "ensemble.safetensors"}
    assert (
        'Ensemble.from_pretrained("me/ensemble")'
        in pushed[0].repos["model", "me/ensemble"].files()["README.md"].data.decode()
    )


def test_pushing_again_without_a_change_sends_nothing(pushed, colleague):
    """The author pushed main and remote-code twice each; the colleague pushed back what was loaded."""
    hub, _ = pushed
    _, _, before, after = colleague
    commits = [path for method, path, _ in hub.log if method == "POST" and "/models/me/model/commit/" in path]
    assert [path.rsplit("/", 1)[1].split("?")[0] for path in commits] == ["main", "remote-code", "v2", "main"]
    assert after == [*before, "commit"]
    first, second = [files for files in hub.repos["model", "me/model"].commits.values() if files][0::3]
    # transformers notes there that the tokenizer came from a Hub this time
    assert {path for path in first.keys() | second.keys() if first[path] != second[path]} == {"tokenizer_config.json"}


def test_files_go_the_way_the_hub_asks_for(pushed):
    hub, _ = pushed
    files = hub.repos["model", "me/model"].files()
    assert files["surprise/ensemble.safetensors"].lfs is files["model.safetensors"].lfs is hub.lfs
    weights = files["model.safetensors"].sha256
    # of commits to three branches only the first brought the weights
    assert sum(path.endswith(weights) for method, path, _ in hub.log if method == "PUT") == int(hub.lfs)


def test_damaged_foreign_and_absent(colleague):
    messages = (
        "me/broken/surprise can't be used: labels.safetensors is damaged",
        "me/foreign/surprise can't be used: config.json was not written by surprise_hf",
        "me/absent",
        "me/broken/surprise can't be used: labels.safetensors is damaged",
        "me/surprise_clustering",
        "has no folder 'nowhere'",
        "v9",
        "dimension 32, but the embeddings have 7",
        "FileNotFoundError: me/large holds no ensemble.safetensors and no surprise/ensemble.safetensors",
    )
    for message, wanted in zip(colleague[0]["errors"], messages, strict=True):
        assert wanted in message


def test_offline_afterwards(pushed, colleague):
    hub, author = pushed
    count = len(hub.log)
    found = client(COLLEAGUE, hub.environment(colleague[1], offline=True), "-", "offline")
    assert len(hub.log) == count
    for name in ("model", "branch", "pipe", "trained", "moments"):
        assert found[name] == author[name], name
    assert found["metric"] == colleague[0]["metric"] == 1.0


@pytest.mark.parametrize("pushed", ["lfs"], indirect=True)  # how files went there makes no difference
def test_a_model_is_never_taken_for_a_plain_encoder(pushed, tmp_path):
    """Because the Hub stumbles over one file, or the cache holds what another library has asked for."""
    hub, _ = pushed
    for who in ("ours", "plain"):
        found = client(DOUBTFUL, hub.environment(tmp_path / who), "-", who)
        assert found == {"model": "no error", "encoder": "no error"}
    assert client(DOUBTFUL, hub.environment(tmp_path / "ours", offline=True), "-", "ours") == found
    offline = client(DOUBTFUL, hub.environment(tmp_path / "plain", offline=True), "-", "ours")
    assert "me/model: surprise/config.json is not in the cache, and the Hub gives no answer" in offline["model"]
    assert offline["encoder"] == "no error"
    hub.busy.add("/resolve/main/surprise/config.json")
    try:
        busy = client(DOUBTFUL, hub.environment(tmp_path / "third"), "-", "ours")
        assert client(DOUBTFUL, hub.environment(tmp_path / "ours"), "-", "ours") == found  # from the cache
    finally:
        hub.busy.clear()
    for name in ("model", "encoder"):
        assert f"me/{name}: surprise/config.json is not in the cache, and the Hub gives no answer" in busy[name]


def test_from_disk_without_network_and_cache(st_path, tmp_path):
    from surprise_hf import SurpriseModel, SurpriseZeroShotPipeline

    namespace: dict[str, Any] = {}
    exec(COMMON.replace("where, *args = sys.argv[1:]", ""), namespace)
    model = SurpriseModel(str(st_path), device="cpu").fit_ensemble(namespace["DOCUMENTS"])
    model.set_labels(namespace["LABELS"]).save_pretrained(str(tmp_path / "a model"))
    expected = json.loads(json.dumps(namespace["scores"](SurpriseZeroShotPipeline(model))))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "an empty cache")}
    found = client(ALONE, offline, tmp_path / "a model")
    assert found["pipeline"] == found["model"] == expected
    assert (found["rows"], found["plain"]) == (16, 32)
    assert "OSError: me/model: We couldn't connect" in found["elsewhere"]
    assert "a connection to" not in found["elsewhere"]


def test_a_process_without_surprise_hf(pushed, tmp_path):
    hub, author = pushed
    found = client(STRANGER, hub.environment(tmp_path, token=None), "-")
    assert "Unknown task surprise-zero-shot" in found["unknown"]
    assert "trust_remote_code=True" in found["untrusted"]
    assert found["loaded"] == []
    for ours, theirs in zip(found["model"] + found["moved"], author["model"] * 2, strict=True):
        pairs = zip(ours, theirs, strict=True) if isinstance(ours, list) else [(ours, theirs)]
        for one, other in pairs:
            assert one["sequence"] == other["sequence"]
            assert one["labels"] == other["labels"]
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    assert "me/secret" in found["refused"]


def test_private_repositories_need_a_token(pushed, tmp_path):
    hub, _ = pushed
    found = client(UNINVITED, hub.environment(tmp_path, token=None), "-", "hf_test")
    for message in (*found["model"], *found["ensemble"]):
        assert "no error" not in message
        assert any(word in message for word in ("me/secret", "me/whole", "me/absent"))
    assert found["token"] == 16
    assert found["model by token"] == ["music", "weather"]
    assert found["pipeline by token"] == pushed[1]["branch"]


def test_no_pickle_anywhere(pushed):
    hub, _ = pushed
    seen = 0
    for (_, name), repo in hub.repos.items():
        for files in repo.commits.values():
            for path, file in files.items():
                assert Path(path).suffix in {".json", ".jinja", ".md", ".py", ".safetensors", ".txt", ""}, (name, path)
                assert not is_pickle(file.data), (name, path)
                seen += 1
    assert seen > 50


def is_pickle(data: bytes) -> bool:
    if data[:2] == b"PK":  # torch.save's zip
        return True
    try:
        return data[:1] == b"\x80" and bool(list(pickletools.genops(io.BytesIO(data))))
    except ValueError:
        return False


def test_the_main_branch_asks_for_no_trust(pushed):
    hub, _ = pushed
    for (kind, name), repo in hub.repos.items():
        files = repo.files()
        if kind == "model" and "config.json" in files:
            assert "custom_pipelines" not in json.loads(files["config.json"].data), name
            assert not [path for path in files if path.endswith(".py")], name
    assert "surprise_remote.py" in hub.repos["model", "me/model"].files("remote-code")


def test_cards_on_the_hub(pushed):
    hub, _ = pushed
    card = hub.repos["model", "me/model"].files()["README.md"].data.decode()
    assert 'model="me/model"' in card
    assert "| a test set (test) | accuracy | 0.7500 |" in card
    trained = hub.repos["model", "me/trained"].files()["README.md"].data.decode()
    assert "| `num_train_epochs` | `2` |" in trained
    assert 'model="me/trained"' in trained


def test_snippets_of_cards_on_the_hub(colleague):
    for name, labels in (("model", 2), ("trained", 2)):
        lines, vectors = colleague[0][f"card of {name}"]
        assert len(lines) == labels  # one for each text of the snippet
        assert {line.rsplit(" ", 1)[0] for line in lines} <= {"sport", "money", "animal"}
        assert vectors == 1
    assert colleague[0]["card of ensemble"] == [[], 16]


def test_a_space_holds_no_compiled_files(pushed):
    files = set(pushed[0].repos["space", "me/surprise_clustering"].files())
    assert files == {"README.md", "__init__.py", "app.py", "requirements.txt", "surprise_clustering.py"}
