"""The files of a SurpriseModel, its model card and its way to the Hub.

What a model has beside its encoder lies in the subfolder `surprise/` of the repository, which modules.json does not
name: plain SentenceTransformer opens the same folder and gives the same embeddings.

    surprise/config.json          format version, dimension, encoder, labels, template, options, report
    surprise/ensemble.safetensors Ensemble.save
    surprise/labels.safetensors   the fitted labels, and the embedding of one fixed text to know the encoder by
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import hub, inputs, model_card, windows
from .encoding import PROBE, TextEncoder
from .ensemble import Ensemble
from .fitted import FittedLabels
from .folders import replacing
from .formats import INDEX, check_version, format_of
from .inputs import DEFAULT_TEMPLATE, Label
from .same_encoder import likeness, same_probe

Key: TypeAlias = tuple[str, ...]

FOLDER = "surprise"
CONFIG, ENSEMBLE, LABELS = "config.json", "ensemble.safetensors", "labels.safetensors"
FORMAT, VERSION = "surprise_hf.model", 1
LATER: dict[str, Any] = {"long_texts": "truncate", "report": {}}  # fields younger than version 1 (see `formats`)


class ModelFiles(TextEncoder):
    """What SurpriseModel carries, saved and loaded; the model itself adds what is done with it."""

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        if model_name_or_path is not None:
            hub.check_exists(model_name_or_path)
        super().__init__(model_name_or_path, **kwargs)
        self.ensemble: Ensemble | None = None
        self._fitted: tuple[FittedLabels, int] | None = None
        self.candidate_labels: list[Label] | None = None
        self.hypothesis_template: inputs.Template = DEFAULT_TEMPLATE
        self.fit_options: dict[str, Any] = {}
        self.encoder_name: str | None = None
        self.report: dict[str, Any] = {}
        self._probe: Tensor | None = None
        self._own_probe: tuple[Any, Tensor] | None = None
        self._given: tuple[list[Key], Tensor] | None = None  # vectors of the stored labels, from examples
        self._has_own_card = False  # it was loaded with a card that someone wrote or edited

    @property
    def fitted(self) -> FittedLabels | None:
        """The stored labels frozen against the ensemble as it is now."""
        if self._fitted is not None and self.ensemble is not None and len(self.ensemble) != self._fitted[1]:
            self.fitted = self._fit(self.ensemble, self.candidate_labels, self.hypothesis_template, self.fit_options)
        return None if self._fitted is None else self._fitted[0]

    @fitted.setter
    def fitted(self, labels: FittedLabels | None) -> None:
        self._fitted = None if labels is None else (labels, 0 if self.ensemble is None else len(self.ensemble))

    def _fit(
        self, ensemble: Ensemble | None, labels: list[Label] | None, template: inputs.Template, options: dict[str, Any]
    ) -> FittedLabels | None:
        raise NotImplementedError

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As `SentenceTransformer.save`, and the `surprise/` folder beside; `save_pretrained` and the Hub use it.

        Raises:
            ValueError: the folder holds a `SurpriseIndex`, whose config.json a model would replace.
        """
        if format_of(Path(path, CONFIG)) == INDEX:
            raise ValueError(f"{os.fspath(path)} holds a SurpriseIndex: choose another folder for the model")
        if self.model_card_data.all_hyperparameters:  # left there by the trainer
            self.report["training"] = model_card.training_arguments(self.model_card_data.all_hyperparameters)
        folder = Path(path, FOLDER)
        pipelines = getattr(getattr(self.transformers_model, "config", None), "custom_pipelines", None)
        if pipelines is not None:  # of the remote-code branch: without its code the folder could not be opened
            pipelines.pop(model_card.TASK, None)
        if (
            self.ensemble is None
            and self.candidate_labels is None
            and not self.report
            and (self._long_texts, self.hypothesis_template) == (LATER["long_texts"], DEFAULT_TEMPLATE)
        ):
            super().save(os.fspath(path), *args, **kwargs)
            for name in (CONFIG, ENSEMBLE, LABELS):  # of a model saved here before
                (folder / name).unlink(missing_ok=True)
            return
        state = {} if self.fitted is None else self.fitted.state()
        tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        if self._given is not None:
            tensors["vectors"] = self._given[1]
        # copies: safetensors refuses tensors that share memory, as fitted labels do with the vectors they come from
        tensors = {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
        probe = self._encode([PROBE])[0].cpu() if self._probe is None else self._probe
        config = {
            "format": FORMAT,
            "version": VERSION,
            "dim": self.dim,
            "encoder": self.encoder_name,
            "hypothesis_template": self.hypothesis_template,
            "long_texts": self._long_texts,
            "candidate_labels": None if self.candidate_labels is None else inputs.as_json(self.candidate_labels),
            "fit_options": self.fit_options,
            "fitted": {name: value for name, value in state.items() if name not in tensors},
            "ensemble": None if self.ensemble is None else len(self.ensemble),
            "report": self.report,
        }
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"  # before any file is touched
        super().save(os.fspath(path), *args, **kwargs)
        with replacing(folder, CONFIG, (LABELS, ENSEMBLE)) as new:
            save_file({"probe": probe, **tensors}, new / LABELS, metadata={"format": FORMAT})
            if self.ensemble is not None:
                self.ensemble.save(new / ENSEMBLE)
            (new / CONFIG).write_text(text, encoding="utf-8")

    def record_results(self, dataset: str, metrics: Mapping[str, Any], split: str | None = None) -> None:
        """Let the model card tell what an evaluation found; arguments and errors as `model_card.record_results`."""
        model_card.record_results(self.report, dataset, metrics, split)

    def add_tags(self, tags: str | Iterable[str] | None) -> None:
        """More tags for the model card."""
        more = [tags] if isinstance(tags, str) else tags or []
        if more:
            self.report["tags"] = sorted({*self.report.get("tags", []), *more})

    def forget_results(self) -> None:
        """Of evaluations, which were of what the model no longer is."""
        self.report.pop("results", None)

    def _create_model_card(self, path: str, model_name: str | None = None, *args: Any, **kwargs: Any) -> None:
        """A card of our own where there is more than an encoder, unless someone edited the one that was loaded, or the
        one there.
        """
        card = Path(path, "README.md")
        if self.ensemble is None and self.candidate_labels is None:
            super()._create_model_card(path, model_name, *args, **kwargs)
            return
        if Path(path, FOLDER, CONFIG).is_file() and not model_card.is_ours(card):
            return
        text = self._model_card_text or ""
        if not self._has_own_card:
            data = self.model_card_data
            if data.language:
                self.report["language"] = data.language
            text = model_card.model_card(self, data.model_id or model_name, data.license or model_card.license_of(text))
        card.write_text(text, encoding="utf-8")

    def push_to_hub(
        self,
        repo_id: str,
        token: bool | str | None = None,
        private: bool | None = None,
        safe_serialization: bool = True,
        commit_message: str | None = None,
        local_model_path: str | None = None,
        exist_ok: bool = False,
        replace_model_card: bool | None = None,
        train_datasets: list[str] | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        *,
        commit_description: str | None = None,
        tags: str | Sequence[str] | None = None,
        remote_code: bool = False,
    ) -> str:
        """As `SentenceTransformer.push_to_hub`: the encoder, its ensemble and its labels.

        What the model no longer has, an ensemble or labels, goes from the repository too (not from its history).

        Args:
            repo_id: owner/name.
            token, private, safe_serialization, commit_message, local_model_path, exist_ok: of the base class.
            train_datasets, revision, create_pr: of the base class.
            replace_model_card: None: where there is no card, or one that surprise_hf wrote and nobody edited.
            commit_description: of the commit.
            tags: more tags for the card.
            remote_code: push a second branch too, for processes without surprise_hf (`remote.push`): "remote-code",
                beside a branch `revision` "<revision>-remote-code".

        Returns:
            The address of the commit, or of the pull request.

        Raises:
            ValueError: with `remote_code`, as `remote.save`, or a pull request, which is one branch; nothing is pushed
                then.
        """
        if remote_code:
            from . import remote

            remote.check(self)
            if create_pr:
                raise ValueError("remote_code=True pushes a branch, which no pull request holds: push it apart")
        self.add_tags(tags)
        where: dict[str, Any] = {"token": token, "revision": revision}
        name = hub.create(repo_id, private=private, exist_ok=exist_ok or create_pr, **where)
        self.model_card_data.set_model_id(name)
        if replace_model_card is None:
            replace_model_card = hub.has_free_card(name, **where)
        more = {
            "commit_message": commit_message or f"Add new {type(self).__name__} model",
            "commit_description": commit_description,
            "create_pr": create_pr,
            "delete_patterns": [f"{FOLDER}/*"],
            **where,
        }
        with TemporaryDirectory() as folder:
            if local_model_path is None:
                self.save(
                    folder,
                    model_name=name,
                    create_model_card=replace_model_card,
                    train_datasets=train_datasets,
                    safe_serialization=safe_serialization,
                )
            url = hub.upload(local_model_path or folder, name, **more)
        if remote_code:
            remote.push(self, name, token=token, revision=remote.branch(revision))
        return url

    # --- loading -------------------------------------------------------------------------------------------------

    def _load_surprise(self, name_or_path: str, where: dict[str, Any]) -> None:
        is_folder = Path(name_or_path).is_dir()
        self.encoder_name = None if is_folder else name_or_path
        if not is_folder and "/" not in name_or_path:
            return  # a short name of an official repository; those carry no ensemble

        # a card of ours tells, where nobody else can, that this is more than an encoder
        expected = model_card.MARK in (self._model_card_text or "")

        def find(name: str) -> Path | None:
            return hub.find(name_or_path, f"{FOLDER}/{name}", expected=expected, **where)

        config_path = find(CONFIG)
        if config_path is None:
            return
        try:
            self._read_surprise(config_path, find)
        except (OSError, KeyError, TypeError, ValueError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{name_or_path}/{FOLDER} can't be used: {reason}. Fit and save the model again, or remove that folder"
                " to use the encoder without it"
            ) from error

    def check_probe(self, probe: Tensor, whose: str = "it") -> None:
        """Refuse what another encoder made: `probe` (d,) is its embedding of one text.

        Raises:
            ValueError: this one embeds the text otherwise; the message begins with `whose`.
        """
        key, kept = self.reads_as(), self._own_probe  # read once: another thread may put its own there
        if kept is None or kept[0] != key:
            self._own_probe = kept = key, self._encode([PROBE])[0].cpu()
        if not same_probe(probe, kept[1]):
            raise ValueError(
                f"{whose} belongs to another encoder, or to this one before it was trained or quantised"
                f" (they embed one text with a cosine of {likeness(probe, kept[1]):.2f})"
            )

    def reads_as(self) -> tuple[Any, ...]:
        """What embeddings depend on: while it stays the same, a text gets the same one.

        But for an optimizer that changes weights without a trace (a fused AdamW leaves `_version` as it was).
        """
        # every other in-place change (an optimizer's step, load_state_dict) raises a tensor's _version
        weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.parameters()]  # noqa: SLF001
        parts: Iterable[Any] = self.children()
        names = ("pooling_mode", "include_prompt", "max_seq_length", "do_lower_case")
        settings = [tuple(getattr(part, name, None) for name in names) for part in parts]
        inner: Iterable[Any] = self.modules()
        adapters = [
            (module.disable_adapters, tuple(module.active_adapters))
            for module in inner
            if isinstance(getattr(module, "disable_adapters", None), bool)  # of peft: switching them changes no weight
        ]
        return self._default_prompt, self.truncate_dim, *weights, *settings, *adapters

    def _read_surprise(self, config_path: Path, find: Any) -> None:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError(f"{CONFIG} was not written by surprise_hf")
        check_version(config["version"], VERSION)
        config = {**LATER, **config}
        if config["dim"] != self.dim:
            raise ValueError(
                f"it belongs to an encoder with {config['dim']} dimensions"
                f"{' (' + config['encoder'] + ')' if config['encoder'] else ''}, and this one gives {self.dim}"
            )
        tensors = _read_tensors(find(LABELS))
        self._probe = tensors.pop("probe")
        self.check_probe(self._probe)
        self.encoder_name = config["encoder"]
        self.hypothesis_template = inputs.check_template(config["hypothesis_template"])
        self._long_texts = windows.check_long_texts(config["long_texts"])
        labels = config["candidate_labels"]
        self.candidate_labels = None if labels is None else inputs.as_labels(labels)
        vectors = tensors.pop("vectors", None)
        if vectors is not None and self.candidate_labels is not None:
            self._given = label_keys(self.candidate_labels, self.hypothesis_template), vectors.to(self.device)
        self.fit_options = dict(config["fit_options"])
        self.report = dict(config["report"])
        self._has_own_card = bool(self._model_card_text) and model_card.MARK not in (self._model_card_text or "")
        if config["ensemble"] is not None:
            ensemble_path = find(ENSEMBLE)
            if ensemble_path is None:
                raise ValueError(f"{ENSEMBLE} is missing")
            self.ensemble = Ensemble.load(ensemble_path, dim=self.dim)
            if len(self.ensemble) != config["ensemble"]:
                raise ValueError(f"{ENSEMBLE} holds {len(self.ensemble)} documents, not {config['ensemble']}")
        if config["fitted"]:
            self.fitted = FittedLabels.from_state({**config["fitted"], **tensors})
            if self.candidate_labels is None or self.fitted.queries.shape != (len(self.candidate_labels), self.dim):
                raise ValueError(f"{LABELS} and {CONFIG} don't fit together")


def label_keys(labels: Sequence[Label], template: inputs.Template) -> list[Key]:
    """What tells labels' vectors apart: the name, and the texts that are embedded for it."""
    return [(str(label), *inputs.hypotheses([label], template)) for label in labels]


def in_subfolder(
    name_or_path: str,
    subfolder: str,
    cache_dir: str | None,
    revision: str | None,
    token: bool | str | None,
    local_files_only: bool,
) -> str:
    """The folder on disk of a model that lies inside a repository or folder."""
    hub.check_exists(name_or_path)
    if not Path(name_or_path).is_dir():
        from huggingface_hub import snapshot_download

        name_or_path = snapshot_download(
            name_or_path,
            allow_patterns=f"{subfolder}/*",
            cache_dir=cache_dir,
            revision=revision,
            token=token,
            local_files_only=local_files_only,
        )
    folder = Path(name_or_path, subfolder)
    if not folder.is_dir():
        raise OSError(f"{name_or_path} has no folder {subfolder!r}")
    return str(folder)


def _read_tensors(path: Path | None) -> dict[str, Tensor]:
    if path is None:
        raise ValueError(f"{LABELS} is missing")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{LABELS} is damaged ({error})") from error
