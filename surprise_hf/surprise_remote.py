"""The task "surprise-zero-shot" for processes that have not imported surprise_hf.

A copy of this file lies in the "remote-code" branch of a model's repository, and transformers runs it:

    transformers.pipeline("surprise-zero-shot", model="owner/name", revision="remote-code", trust_remote_code=True)

It needs torch and transformers alone and gives the scores of surprise_hf to 1e-5, for the labels stored with the model
and for others, by the gaussian estimate and the crossover. Everything else is in the package: pip install surprise-hf.

Paper: "Taken by Surprise: Contrast effect for Similarity Scores", arXiv 2308.09765.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Pipeline
from transformers.utils.hub import cached_file

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
POOLINGS = ("cls", "mean", "max", "lasttoken")
VERSION = 1  # of surprise/config.json
ARGUMENTS = ("candidate_labels", "hypothesis_template", "surprise_weight", "n_cross", "top_k")
MORE = "; that is in the package: pip install surprise-hf, import surprise_hf, and load the main branch"


class SurpriseRemotePipeline(Pipeline):
    """Zero-shot labels by the surprise score: how much more similar a text is to a label than an ensemble's texts are.

    Call with texts and, unless they are stored, candidate_labels; hypothesis_template, surprise_weight, n_cross and
    top_k as in surprise_hf, also as defaults of the pipeline. Gives {"sequence", "labels", "scores"} for each text, the
    best label first.
    """

    _load_tokenizer = True  # type: ignore[assignment]
    _load_processor = _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = _load_video_processor = False  # type: ignore[assignment]
    model: Any
    tokenizer: Any

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self.model.eval()
        self.settings = self._json("config_sentence_transformers.json") or {}
        self.limit = min(self.tokenizer.model_max_length, 10**9)  # 1e30, where there is none, is beyond its integers
        self.steps = [self._module(m["path"], m["type"].split(".")[-1]) for m in self._json("modules.json") or []]
        self.stored = self._json("surprise/config.json")
        if not isinstance(self.stored, dict) or self.stored.get("format") != "surprise_hf.model":
            raise ValueError("there is no surprise/config.json that surprise_hf wrote")
        if not isinstance(self.stored["version"], int) or self.stored["version"] > VERSION:
            raise ValueError(
                f"surprise/config.json has format {self.stored['version']}, newer than this file's {VERSION}{MORE}"
            )
        self.tensors = self._tensors("surprise/labels.safetensors") or {}
        self.ensemble = self._tensors("surprise/ensemble.safetensors")

    # --- files of the repository ---------------------------------------------------------------------------------

    def _file(self, name: str) -> str | None:
        where = self.model.name_or_path
        if Path(where).is_dir():
            return str(Path(where, name)) if Path(where, name).is_file() else None
        # this file lies in a folder named by the commit it came with, and from 5.24 on nothing else tells it
        commit = getattr(self.model.config, "_commit_hash", None) or _commit_of(Path(__file__).parent.name)
        try:
            return cached_file(where, name, revision=commit, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            if "token" not in str(error):
                raise
            hint = (
                "transformers hands the token of the call to no code of a repository: set HF_TOKEN, or `hf auth login`"
            )
            raise OSError(f"{error}\n{hint}") from error

    def _json(self, name: str) -> Any:
        path = self._file(name)
        return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))

    def _tensors(self, name: str) -> dict[str, Tensor] | None:
        path = self._file(name)
        return None if path is None else load_file(path)

    # --- embedding -----------------------------------------------------------------------------------------------

    def _module(self, path: str, kind: str) -> Any:
        """A module of sentence-transformers as a function of (hidden or sentence vectors, mask)."""
        if kind not in MODULES:
            raise ValueError(f"this encoder has a module {kind!r}, which this file does not know{MORE}")
        if kind == "Transformer":
            return lambda x, _: x
        if kind == "Normalize":
            return lambda x, _: torch.nn.functional.normalize(x, dim=-1)
        config = self._json(f"{path}/config.json")
        if kind == "Pooling":
            mode = config.get("pooling_mode") or next(
                (name for name in POOLINGS if config.get(f"pooling_mode_{_OLD.get(name, name)}")), None
            )
            if mode not in POOLINGS:
                raise ValueError(f"this encoder has the pooling {mode!r}, which this file does not know{MORE}")
            skip = 0 if config.get("include_prompt", True) else self._prompt_length()
            return lambda x, mask: pool(x, after(mask, skip), mode)
        weights = self._tensors(f"{path}/model.safetensors") or {}
        weight, bias = weights["linear.weight"], weights.get("linear.bias")
        name = config.get("activation_function", "torch.nn.modules.activation.Tanh").split(".")[-1]
        activation = getattr(torch.nn, name)()

        def dense(x: Tensor, _: Tensor) -> Tensor:
            w, b = weight.to(x), None if bias is None else bias.to(x)
            return activation(torch.nn.functional.linear(x, w, b))

        return dense

    def _prompt(self) -> str:
        return (self.settings.get("prompts") or {}).get(self.settings.get("default_prompt_name") or "") or ""

    def _prompt_length(self) -> int:
        """Tokens of the prompt, without the special one that ends a text."""
        if not self._prompt():
            return 0
        found = self._tokens([self._prompt()])["input_ids"][0].tolist()
        return len(found) - (found[-1] in self.tokenizer.all_special_ids)

    def _tokens(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, truncation=True, max_length=self.limit, return_tensors="pt")

    @torch.no_grad()
    def embed(self, texts: list[str], batch_size: int = 32) -> Tensor:
        """(n, d) float32 on the CPU."""
        full = [(self._prompt() + text).strip() for text in texts]
        order = sorted(range(len(texts)), key=lambda i: -len(full[i]))
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = self._tokens([full[i] for i in rows]).to(self.device)
            out = self.model(**batch).last_hidden_state
            for step in self.steps or [lambda x, mask: pool(x, mask, "mean")]:
                out = step(out, batch["attention_mask"])
            for i, vector in zip(rows, out.float().cpu()[:, : self.settings.get("truncate_dim")], strict=True):
                found[i] = vector
        return torch.stack(found)

    def save_pretrained(self, *_: Any, **__: Any) -> None:
        """Refused: the base class would leave out what the repository holds beside the weights."""
        raise NotImplementedError(f"this pipeline can't be saved; copy its repository (snapshot_download){MORE}")

    # --- the call ------------------------------------------------------------------------------------------------

    def __call__(  # type: ignore[override]
        self,
        inputs: Any = None,
        candidate_labels: Any = None,
        *,
        sequences: Any = None,  # another name of inputs
        hypothesis_template: Any = None,
        surprise_weight: float | None = None,
        n_cross: float | None = None,
        top_k: int | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,  # as other pipelines have it; tokenising needs none
        **other: Any,
    ) -> Any:
        """See the class."""
        if inputs is not None and sequences is not None:
            raise ValueError("inputs and sequences are two names of one argument: give one of them")
        inputs = sequences if inputs is None else inputs
        given = {name: value for name, value in locals().items() if name in ARGUMENTS}
        call = {**self._postprocess_params, **self._sanitize_parameters(**given, **other)[2]}
        top_k = call.get("top_k")
        sizes = (size for size in (batch_size, self._batch_size, 32) if size is not None)
        batch_size = next(sizes)
        for name, count in (("top_k", top_k), ("batch_size", batch_size)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a positive integer, got {count!r}")
        rows = as_texts(inputs)
        results: list[dict[str, Any]] = [{"sequence": text, "labels": [], "scores": []} for text in rows]
        texts = {row: text for row, text in enumerate(rows) if text is not None and not is_blank(text)}
        if texts:
            names = {"surprise_weight": "weight", "n_cross": "n_cross"}
            options = {to: call[name] for name, to in names.items() if name in call}
            keys = self.embed(list(texts.values()), batch_size)
            labels, fitted = self._fit(call.get("candidate_labels"), call.get("hypothesis_template"), options, keys)
            for row, (scores, order) in zip(texts, rank(unit(keys), fitted), strict=True):
                best = order[:top_k]
                results[row]["labels"] = [labels[i] for i in best]
                results[row]["scores"] = [scores[i] for i in best]
        return results[0] if isinstance(inputs, str) else results

    def _fit(
        self, given: Any, template: Any, options: dict[str, Any], keys: Tensor
    ) -> tuple[list[Any], dict[str, Any]]:
        """Names of the labels, and what scores them: that stored, where nothing else is asked for."""
        stored, usual = self.stored["candidate_labels"], self.stored["hypothesis_template"]
        labels = as_labels(stored if given is None else given)
        asked = usual if template is None else list(template) if isinstance(template, tuple) else template
        same = stored is not None and labels == as_labels(stored)
        options = {**(self.stored["fit_options"] if same or self.ensemble is not None else {}), **options}
        names = [label for label, _ in labels]
        if same and asked == usual and self.stored["fitted"] and options == self.stored["fit_options"]:
            return names, {**self.stored["fitted"], **self.tensors}
        unknown = [
            f"{n}={v}" for n, v in options.items() if n not in ("weight", "n_cross") and v not in (0, "gaussian")
        ]
        if unknown:
            raise ValueError(f"new labels can't be fitted with {', '.join(unknown)} here{MORE}")
        queries = self._label_vectors(labels, [asked] if isinstance(asked, str) else asked)
        return names, fit(queries, self.ensemble, keys, options.get("weight"), options.get("n_cross", 1000))

    def _label_vectors(self, labels: list[tuple[Any, str]], templates: list[str]) -> Tensor:
        """(m, d): those stored from examples, the others of the labels' texts."""
        if not templates:
            raise ValueError("hypothesis_template is an empty list: give at least one template")
        for template in templates:
            if template.count("{}") != 1 or template.count("{") + template.count("}") != 2:
                raise ValueError(f"hypothesis_template must contain {{}} exactly once and no other brace: {template!r}")
        given, usual = self.tensors.get("vectors"), self.stored["hypothesis_template"]
        known = [] if given is None else keys_of(as_labels(self.stored["candidate_labels"]), usual)
        place = {key: row for row, key in enumerate(known)}
        by_text = {key[1:]: row for row, key in reversed([*enumerate(known)])}
        asked = keys_of(labels, templates)
        rows = [place.get(key, by_text.get(key[1:])) for key in asked]
        new = [i for i, row in enumerate(rows) if row is None]
        found = [torch.empty(0) if given is None or row is None else given[row] for row in rows]
        if new:
            vectors = self.embed([asked[i][at + 1] for at in range(len(templates)) for i in new])
            if len(templates) > 1:
                vectors = unit(vectors).reshape(len(templates), len(new), -1).mean(dim=0).to(vectors)
            for i, vector in zip(new, vectors, strict=True):
                found[i] = vector
        return torch.stack(found)

    def _sanitize_parameters(self, **kwargs: Any) -> Any:
        unknown = sorted(set(kwargs) - set(ARGUMENTS))
        if unknown:
            raise TypeError(f"unknown here: {', '.join(unknown)}{MORE}")
        return {}, {}, {name: value for name, value in kwargs.items() if value is not None}

    def preprocess(self, input_: Any, **_: Any) -> Any:
        """Nothing."""
        return {"documents": input_}

    def _forward(self, input_tensors: Any, **_: Any) -> Any:
        return self(input_tensors["documents"])

    def postprocess(self, model_outputs: Any, **_: Any) -> Any:
        """Nothing."""
        return model_outputs


def _commit_of(folder: str) -> str | None:
    """The commit that a folder is named by."""
    return folder if len(folder) == 40 and set(folder) <= set("0123456789abcdef") else None


_OLD = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def pool(x: Tensor, mask: Tensor, mode: str) -> Tensor:
    """Token vectors (n, t, d) and mask (n, t) to (n, d), as sentence-transformers does it."""
    wide = mask.unsqueeze(-1).to(x.dtype)
    if mode == "mean":
        return (x * wide).sum(dim=1) / wide.sum(dim=1).clamp(min=1e-9)
    if mode == "max":
        return x.masked_fill(wide == 0, -1e9).amax(dim=1)
    flat = mask.to(torch.int64)
    at = flat.argmax(dim=1) if mode == "cls" else flat.shape[1] - 1 - flat.flip(1).argmax(dim=1)
    return x[torch.arange(len(x), device=x.device), at]


def after(mask: Tensor, skip: int) -> Tensor:
    """A mask (n, t) without the first `skip` tokens of each text, wherever the padding is."""
    return mask * (mask.cumsum(dim=1) > skip)


def is_blank(text: str) -> bool:
    """Nothing but control and format characters and separators."""
    return all(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Zs") for character in text)


def as_texts(inputs: Any) -> list[str | None]:
    """The rows of a call; None for a missing one."""
    if isinstance(inputs, Dataset) and not hasattr(inputs, "__iter__"):  # as KeyDataset
        inputs = [inputs[i] for i in range(len(inputs))]  # type: ignore[arg-type]
    if isinstance(inputs, (dict, set, frozenset)) or hasattr(inputs, "columns") or not isinstance(inputs, Iterable):
        raise ValueError(f"documents must be a string or a list of strings, got {type(inputs).__name__}")
    rows = [inputs] if isinstance(inputs, str) else [row.as_py() if hasattr(row, "as_py") else row for row in inputs]
    for row, text in enumerate(rows):
        if isinstance(text, float) and text != text:
            rows[row] = None
        elif not isinstance(text, str) and text is not None:
            raise ValueError(f"document {row} must be a string, got {type(text).__name__}")
    return rows


def as_labels(labels: Any) -> list[tuple[Any, str]]:
    """Labels and the texts to embed for them: of a list, a dict {label: description} or a string with commas."""
    if isinstance(labels, str):
        labels = [label for label in labels.split(",") if label.strip()]
    if labels is None or not isinstance(labels, Iterable):
        raise ValueError("no labels: pass candidate_labels=[...]")
    labels = sorted(labels, key=str) if isinstance(labels, (set, frozenset)) else labels
    found = [label.strip() if isinstance(label, str) else label for label in labels]
    for label in found:
        if isinstance(label, bool) or not isinstance(label, (str, Integral)):
            raise ValueError(f"a label must be a string or an integer, got {label!r}{MORE}")
    if not found or "" in found or len(set(map(str, found))) < len(found):
        raise ValueError("candidate_labels must be at least one label, none blank, and all different")
    texts = list(labels.values()) if isinstance(labels, dict) else found
    # values that are no text, as in {"sports": 0}, only number the labels
    return [
        (label, text.strip() if isinstance(text, str) else str(label)) for label, text in zip(found, texts, strict=True)
    ]


def keys_of(labels: list[tuple[Any, str]], templates: Any) -> list[tuple[str, ...]]:
    """What tells labels' vectors apart: the name, and the texts that are embedded for it."""
    several = [templates] if isinstance(templates, str) else templates
    return [(str(label), *(one.replace("{}", text) for one in several)) for label, text in labels]


# --- the score (paper section 2), in float64 -------------------------------------------------------------------------


def unit(x: Tensor) -> Tensor:
    """L2-normalised rows; zero rows stay zero."""
    return torch.nn.functional.normalize(x.double(), dim=1)


def fit(
    queries: Tensor,
    ensemble: dict[str, Tensor] | None,
    keys: Tensor,
    weight: float | None = None,
    n_cross: float = 1000,
) -> dict[str, Any]:
    """Labels (m, d) against the stored ensemble, or else against these documents (n, d)."""
    q = unit(queries)
    if ensemble is None:
        count, rows = len(keys), unit(keys)
        psi = rows @ q.T
        mean, var = psi.mean(dim=0), psi.var(dim=0, correction=0)
    else:
        count, rows = int(ensemble["count"]), unit(ensemble["reservoir"])
        mean = q @ ensemble["mean"]
        var = ((q @ (ensemble["scatter"] / count)) * q).sum(dim=1)
    floor = 8 * torch.finfo(torch.float32).eps * mean.abs().clamp(min=1)
    std = torch.where(var <= floor.square(), 0.0, var.clamp(min=0).sqrt())
    if weight is not None and not 0 <= weight <= 1:
        raise ValueError(f"surprise_weight must be between 0 and 1, got {weight!r}")
    if not n_cross > 0:
        raise ValueError(f"n_cross must be a positive number, got {n_cross!r}")
    w = math.tanh(count / n_cross) if weight is None else float(weight)
    w = 0.0 if w < 1e-3 else 1.0 if 1 - w < 1e-3 else w
    found = {"queries": queries, "mean": mean, "std": std, "weight": w, "estimator": "gaussian"}
    if w < 1:
        if not len(rows):
            raise ValueError(f"a surprise weight of {w:.3f}, below 1, needs documents, and the ensemble keeps none")
        x = (rows @ q.T).flatten().sort().values
        t = (x[(len(x) - 1) // 2] + x[len(x) // 2]) / 2
        half = len(x) // 2
        below = x[:half].sum() + (x[half] / 2 if len(x) % 2 else 0)
        knee, a, b = ((v + 1) / 2 for v in (t, below / (len(x) / 2), (x.sum() - below) / (len(x) / 2)))
        if a * (1 - knee) + knee * (1 - b) <= 8 * torch.finfo(torch.float32).eps:  # all at one end, within rounding
            knee = a = b = knee.round()
        found["rescale"] = torch.stack((torch.tensor(-1.0).double(), torch.tensor(1.0).double(), knee, a, b))
    return found


def rank(keys: Tensor, fitted: dict[str, Any]) -> list[tuple[list[float], list[int]]]:
    """Of every document its scores, and the labels' order by the decision rule."""
    psi = keys @ unit(fitted["queries"]).T
    mean, std, w = fitted["mean"].double(), fitted["std"].double(), float(fitted["weight"])
    gap = psi - mean
    floor = 8 * torch.finfo(torch.float32).eps * mean.abs().clamp(min=1)
    step = torch.where(gap.abs() <= floor, 0.0, gap.sign() * torch.inf)
    z = torch.where(std == 0, step, gap / torch.where(std == 0, 1.0, std))
    score, complement = 0.5 * torch.erfc(-z * math.sqrt(0.5)), 0.5 * torch.erfc(z * math.sqrt(0.5))
    if fitted["estimator"] == "empirical":
        edge = psi.T - 8 * torch.finfo(torch.float32).eps
        score = (
            torch.searchsorted(fitted["columns"].double(), edge.contiguous()) / fitted["columns"].shape[1]
        ).T.double()
        complement = 1 - score
    if w < 1:
        hat, hat_gap = rescaled(psi, fitted["rescale"].double())
        score, complement = w * score + (1 - w) * hat, w * complement + (1 - w) * hat_gap
    if w == 0:
        order = psi.argsort(dim=1, descending=True, stable=True)
    else:
        order = z.argsort(dim=1, descending=True, stable=True)
        if w < 1 or fitted["estimator"] == "empirical":
            order = order.gather(1, complement.gather(1, order).argsort(dim=1, stable=True))
    return list(zip(score.tolist(), order.tolist(), strict=True))


def rescaled(psi: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """The similarity on [0, 1], piecewise linear with mean 0.5 over the ensemble, and one less it."""
    low, high, knee, a, b = parts.tolist()
    x = ((psi - low) / (high - low)).clamp(0, 1)
    d = a * (1 - knee) + knee * (1 - b)
    if d == 0:
        return torch.full_like(x, 0.5), torch.full_like(x, 0.5)
    lower, upper_gap = x * ((1 - b) / d), (1 - x) * (a / d)
    hat = torch.where(x <= knee, lower, 1 - upper_gap).clamp(0, 1)
    return hat, torch.where(x <= knee, 1 - lower, upper_gap).clamp(0, 1)
