"""SurpriseTrainer: fine-tune an encoder on a few labelled texts, with transformers' Trainer.

The steps are those of `label_trainer`. Here is what comes around them: going on with the surest documents, folders and
checkpoints that are pipelines, and evaluation. Paper: section 3.2 (training).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from datasets import Dataset
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import EvalPrediction
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, HubStrategy, denumpify_detensorize
from transformers.utils.hub import PushInProgress

from . import hub, inputs, self_training
from .few_shot import judge_decisions, pseudo_label
from .fitted import FittedLabels
from .label_trainer import ADAPTED, NO_DOCUMENTS, LabelTrainer, is_adapted
from .model_files import CONFIG, FOLDER
from .ops import unit_rows
from .targets import as_matrix
from .training_arguments import SurpriseTrainingArguments
from .training_data import LABEL, TEXT, WEIGHT, restore

__all__ = ["SurpriseTrainer", "SurpriseTrainingArguments"]

MEMORY = "loss.safetensors"  # of a checkpoint


class SurpriseTrainer(LabelTrainer):
    """Fine-tunes an encoder so that documents lie near their labels: between name and examples, as far as these agree.

    Args:
        model: a SurpriseModel or SentenceTransformer (its modules are trained in place), or None with `model_init`.
        args: SurpriseTrainingArguments.
        train_dataset: rows with a text and its label (a name, a number, a ClassLabel, a list of these, or nothing),
            as a `datasets.Dataset`, a DataFrame, dicts, or a dict of columns. See `targets.read_targets`. Blank texts
            are left out.
        eval_dataset: the same, or a dict of several.
        labels: the label set; None takes that of the training set (its ClassLabel, or the labels that occur), with the
            descriptions that the model stores of them.
        hypothesis_template: what to embed for a label; None takes the model's.
        ensemble: unlabelled documents of the kind to be labelled, which make the ensemble of the trained model; its
            labels are refined on them (`args.refine`), unless there are no more of them than of the training texts, and
            training goes on with those it is surest of where that pays by what is known (`args.self_training`).
            Iterators are read into a list. None: the training texts, without refinement.
        compute_metrics: of an EvalPrediction with scores (n, m) and targets (n, m) bool.
        kwargs: of SentenceTransformerTrainer (callbacks, optimizers, evaluator, model_init, ...). `loss` may be a
            WeightedFocalLoss.

    Raises:
        ValueError: a column, a label, a document or an option that does not fit, before anything is trained.

    After `train` the model holds labels, template and ensemble, and `save_model` saves them: checkpoints too are
    folders for `transformers.pipeline("surprise-zero-shot", model=folder)`. Examples move each label from its name,
    while training and as saved (`few_shot.aim_labels`, `few_shot.part_labels`), unless `args.mix_examples` is False.

    Examples:
        >>> trainer = SurpriseTrainer(model=SurpriseModel("sentence-transformers/all-MiniLM-L6-v2"),
        ...                           args=SurpriseTrainingArguments(output_dir="news"), train_dataset=rows)
        >>> trainer.train()
        >>> trainer.save_model()

    References: paper section 3.2; docs/training.md.
    """

    push_in_progress: Any
    _pushed_to: tuple[str | None, str | None] | None = None  # token and revision, while it is pushed

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in every Trainer; afterwards the model's ensemble and labels belong to the trained weights."""
        result = super().train(*args, **kwargs)
        self._self_train()
        return result

    # --- self-training -------------------------------------------------------------------------------------------

    def self_training_rows(self, per_label: int = 32) -> Dataset:
        """The examples, and for each label the documents of `ensemble` that the trained model is surest of.

        A training set for a second trainer, which goes on with this one's model: self-training (docs/training.md).

        Args:
            per_label: documents for each label, at most (`few_shot.pseudo_label`); those among the examples, whose
                label is known, are not added.

        Returns:
            rows in the columns that `args` names, examples first. Label names come with them; where labels are
            numbers, the second trainer takes `labels=trainer.labels`.

        Raises:
            ValueError: this trainer has no `ensemble`, no training set, or has not trained.
        """
        if self.ensemble is None:
            raise ValueError(NO_DOCUMENTS)
        if not isinstance(self.train_dataset, Dataset) or not self.state.global_step:
            raise ValueError("self-training starts from a trained model: call train() first")
        assert self.labels is not None
        self._refit()
        refine = self.model.fit_options.get("refine", "auto")
        found = pseudo_label(
            self.model, self.ensemble, per_label=per_label, refine=refine, batch_size=self.args.eval_batch_size
        )
        known = set(self.train_dataset[TEXT])
        return self._joined({row[TEXT]: row[LABEL] for row in found if row[TEXT] not in known})

    def _joined(self, found: dict[str, int]) -> Dataset:
        """The examples and these other texts with their labels, as rows for another trainer."""
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        added = [{TEXT: text, LABEL: [label], WEIGHT: 1.0} for text, label in found.items()]
        columns = self.train_dataset.column_names
        rows = {name: [*self.train_dataset[name], *(row[name] for row in added)] for name in columns}
        args = self._columns
        prepared = Dataset.from_dict(rows, self.train_dataset.features)
        return restore(prepared, self.labels, args.text_column or TEXT, args.label_column or LABEL, args.weight_column)

    def _self_train(self) -> None:
        """Go on for an epoch with the documents that the model is surest of, where that is wanted (`_may_self_train`).

        Its ensemble and labels, fitted just before, tell whether examples and documents agree: whether the labels that
        part the examples, by cosine, and these labels refined on the documents decide alike on nearly all documents.
        """
        model, wanted = self.model, self._columns.self_training
        if not self._may_self_train() or model.ensemble is None or model.fitted is None:
            return
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        looked_at = model.ensemble.reservoir.to(model.fitted.queries.device)
        z = model.fitted.z(looked_at)
        parted = unit_rows(model.label_vectors(self.labels, model.hypothesis_template)).to(z.device)
        agreement = self_training.of_first_process(self_training.agreement(z, looked_at, parted))
        if wanted is None and agreement < self_training.AGREED:
            return
        texts = [text for _, part, _ in inputs.chunks(self.ensemble, 1024) for text in part]
        found = self_training.of_first_process(
            self_training.joining(z, model.ensemble, texts, self.train_dataset[TEXT])
        )
        rows = self._joined({text: label for text, (_, label) in found.items()})
        examples = self._examples()[1]
        embedded = torch.cat([examples, looked_at[[at for at, _ in found.values()]].to(examples)])
        self.log({"self_training": len(found), "agreement": round(agreement, 4)})
        kind: dict[str, Any] = {
            "labels": self.labels,
            "hypothesis_template": self.template,
            "loss": self._focal,
            "optimizer_cls_and_kwargs": self.optimizer_cls_and_kwargs,
        }
        more = self_training.GoingOn(model, self._columns, rows, embedded, **kind)
        self._fit_step = None
        try:
            more.train()
        finally:
            for side, count in more.loss.encoded.items():
                self.loss.encoded[side] += count
            self._refit()

    def _may_self_train(self) -> bool:
        """By itself only with enough labels and examples, of one label each, where labels are refined on documents and
        no other end was asked for: a number of steps, or the checkpoint that was measured best; nor an optimizer given,
        which can't go on with another trainer.
        """
        wanted, args, rows, labels = self._columns.self_training, self.args, self.train_dataset, len(self.labels or ())
        if self.ensemble is None or not isinstance(rows, Dataset) or labels < 2:
            return False
        if wanted is not None:
            return wanted
        refined = self._columns.mix_examples and self.model.fit_options.get("refine") == "auto"
        ends = args.max_steps > 0 or args.load_best_model_at_end or self._own_optimizer
        targets = list(rows[LABEL])
        enough = labels >= self_training.LABELS and sum(map(bool, targets)) >= self_training.EXAMPLES * labels
        return enough and refined and not ends and all(len(one) < 2 for one in targets)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """The model as a folder for the pipeline. The arguments are not pickled beside it."""
        del state_dict
        if not self.args.should_save:  # from 5.24 on transformers calls this on every process
            return
        self._check_has_model()
        if is_adapted(self.model):
            raise ValueError(ADAPTED)
        if self._is_trained or self.state.global_step:  # while it trains, or where the last fit was interrupted
            self._refit()
        path = str(output_dir or self.args.output_dir)
        self.model.save_pretrained(path)
        self._save_memory(path)

    def _save_memory(self, path: str) -> None:
        """Of a checkpoint: what the loss found before it cannot be found again when training goes on."""
        is_checkpoint = self.is_in_train and Path(path).name.startswith(PREFIX_CHECKPOINT_DIR)
        found = self.loss.memory() if is_checkpoint else {}
        if found:
            save_file({name: x.cpu().contiguous() for name, x in found.items()}, Path(path, MEMORY))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """A checkpoint as it is, without what only resuming needs; where that is wanted, all of it in a folder beside.

        The base class would pickle the arguments too, and with them the token.
        """
        args = self.args
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done() and not args.hub_always_push:
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        where: dict[str, Any] = {"token": args.hub_token, "revision": args.hub_revision}
        name, step = str(self.hub_model_id), f"step {self.state.global_step}"
        ignored = ["*.bin", "*.pt", "*.pth", "trainer_state.json", MEMORY]
        if not hub.has_free_card(name, **where):
            ignored.append("README.md")
        sent: dict[str | None, Any] = {None: (f"Training in progress, {step}", ignored)}
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            last = args.hub_strategy == HubStrategy.CHECKPOINT
            beside = "last-checkpoint" if last else Path(checkpoint_folder).name
            sent[beside] = (f"Training in progress, {step}, checkpoint", None)
        api = HfApi()  # one, whose jobs are done one after the other
        jobs: Any = [
            api.upload_folder(
                repo_id=name,
                folder_path=checkpoint_folder,
                path_in_repo=folder,
                commit_message=message,
                ignore_patterns=patterns,
                run_as_future=True,
                **where,
            )
            for folder, (message, patterns) in sent.items()
        ]
        self.push_in_progress = PushInProgress(jobs)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in every Trainer; a card that someone edited, there or here, stays."""
        self._pushed_to = token or self.args.hub_token, revision or self.args.hub_revision
        try:
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)
        finally:
            self._pushed_to = None

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,  # noqa: A002 (its name)
        tags: str | list[str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """As in the base class, but a card that someone edited stays."""
        if not self.is_world_process_zero():
            return
        self.model.add_tags(tags)
        if self._pushed_to is not None:
            hub.keep_card(str(self.hub_model_id), Path(str(self.args.output_dir)), *self._pushed_to)
        super().create_model_card(language, license, None, *args, **kwargs)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]  # as sentence-transformers
        """Weights, ensemble and labels; the base class loads the weights alone."""
        config = Path(checkpoint_path, FOLDER, CONFIG)
        if config.exists():  # before a weight is changed
            self._check_trained_for(checkpoint_path, json.loads(config.read_text(encoding="utf-8")))
        super()._load_from_checkpoint(checkpoint_path)
        memory = Path(checkpoint_path, MEMORY)
        self._memory = load_file(memory) if memory.exists() else {}
        if config.exists():
            name, own_card = self.model.encoder_name, self.model._has_own_card  # noqa: SLF001
            self.model._load_surprise(str(checkpoint_path), {})  # noqa: SLF001
            self.model.encoder_name = self.model.encoder_name or name
            self.model._has_own_card = own_card  # noqa: SLF001 (of what was given, not of the checkpoint)
        self._fit_step = None

    def _check_trained_for(self, checkpoint_path: str, config: Any) -> None:
        labels, template = config["candidate_labels"], config["hypothesis_template"]
        labels = None if labels is None else inputs.as_labels(labels)
        for name, kept, own in (("other labels", labels, self.labels), ("another template", template, self.template)):
            if kept != own:
                raise ValueError(f"{checkpoint_path} was trained for {name}: {kept!r}, not {own!r}")

    # --- evaluation ----------------------------------------------------------------------------------------------

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], float] | None = None,
        n_trials: int = 20,
        direction: str | list[str] | None = None,
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in every Trainer, but for the objective where none is given: the accuracy by surprise, which is maximised,
        or with `direction="minimize"` the loss (of several evaluation sets, the mean). The base class would add up all
        metrics, the cross-entropy among them.

        Raises:
            ValueError: several directions without `compute_objective`.
        """
        if compute_objective is None:
            if direction not in (None, "maximize", "minimize"):
                raise ValueError(f"direction={direction!r} needs a compute_objective that gives as many numbers")
            ending = "_loss" if direction == "minimize" else "_surprise_accuracy"
            direction = direction or "maximize"

            def compute_objective(metrics: dict[str, float]) -> float:
                found = [value for name, value in metrics.items() if name.endswith(ending)]
                if not found:
                    raise ValueError(f"a search needs an eval_dataset with labels: no *{ending} is among {[*metrics]}")
                return fmean(found)

        direction = direction or "minimize"
        return super().hyperparameter_search(
            hp_space, compute_objective, n_trials, direction, backend, hp_name, **kwargs
        )

    def _check_has_model(self) -> None:
        model: Any = self.model
        if model is None:
            raise ValueError(
                "between the trials of a search and after it there is no model: set the best arguments"
                " (best.hyperparameters) in trainer.args, and call train() first"
            )

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Loss, and accuracy and macro F1 of the decisions by cosine and by surprise.

        Documents are encoded once, on every process. Labels are as they would be saved, but the loss is that of
        training. The ensemble is the one that would be saved; a model that has none, before it is trained, takes the
        evaluated documents themselves, as in the paper. A document with r labels gets the r best ones, so that for r =
        1 this is the usual accuracy; documents without a label count in the loss only.

        Returns:
            predictions (n, m) float32 scores, label_ids (n, m) bool, and metrics <prefix>_loss,
            <prefix>_cross_entropy, <prefix>_cosine_accuracy, <prefix>_cosine_f1, <prefix>_surprise_accuracy,
            <prefix>_surprise_f1, those of `compute_metrics` and of the evaluator. Of rows to predict without a label
            column, label_ids are None, and there are no metrics of labels.
        """
        self._check_has_model()
        rows = dataloader.dataset
        metrics: dict[str, float] = {}
        if self.evaluator is not None or not isinstance(rows, Dataset):
            output = super().evaluation_loop(
                DataLoader(cast("Any", [])), description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
            metrics = dict(output.metrics or {})
            if not isinstance(rows, Dataset):
                return output
        assert self.labels is not None
        texts = list(rows[TEXT])
        labelled = LABEL in rows.column_names
        positive = as_matrix(rows[LABEL] if labelled else [[]] * len(texts), len(self.labels))
        emb, _ = self.model.embed(texts, batch_size=self.args.eval_batch_size)
        if self._columns.mix_examples and self.state.global_step:
            self._refit()
        vectors = self.model.label_vectors(self.labels, self.model.hypothesis_template).to(emb.device)
        found = {}
        with torch.no_grad():
            if labelled:
                device = self.args.device  # embeddings of an Apple GPU come on the CPU
                keys = self.loss.document_rows(emb).to(device)
                queries = self.loss.label_rows(self._name_vectors().to(emb.device)).to(device)
                loss, cross_entropy = self.loss.focal(keys, queries, positive.to(device))
                found = {"loss": float(loss), "cross_entropy": float(cross_entropy)}
            fitted = FittedLabels.fit(vectors, self._context(texts, emb), **self.model.fit_options)
            if positive.any():
                found |= judge_decisions(emb, vectors, fitted, positive)
            scores = fitted.score(emb).float().cpu()
            if self.preprocess_logits_for_metrics is not None:
                truth = cast("Tensor", positive if labelled else None)  # as in transformers
                scores = self.preprocess_logits_for_metrics(scores, truth)
        if positive.any() and (metric_key_prefix != "eval" or self.eval_dataset is None or rows is self.eval_dataset):
            data = {"eval": "the evaluation set", "test": "the test set"}.get(metric_key_prefix, metric_key_prefix)
            self.model.record_results(data, {name: value for name, value in found.items() if "_" in name})
        if self._metrics is not None and labelled:
            found |= self._metrics(EvalPrediction(predictions=nested_numpify(scores), label_ids=positive.numpy()))
        start = f"{metric_key_prefix}_"
        found = denumpify_detensorize(found)
        metrics |= {name if name.startswith(start) else start + name: value for name, value in found.items()}
        return EvalLoopOutput(nested_numpify(scores), positive.numpy() if labelled else None, metrics, len(texts))

    def _context(self, texts: Sequence[str], emb: Tensor) -> Any:
        if self.ensemble is not None or self._is_trained or self.state.global_step:
            self._refit()
        if self.model.ensemble is not None:
            return self.model.ensemble
        kept = [row for row, text in enumerate(texts) if not inputs.is_blank(text)]
        return emb[kept] if kept else emb
