"""SurpriseTrainer: fine-tune an encoder on a few labelled texts, with transformers' Trainer.

A step encodes its documents and the label texts once each and compares all with all (`losses.LabelMatrixLoss`).
After training the ensemble is fitted anew with the trained weights, so that the saved folder is a pipeline.
Paper: section 3.2 (training).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset, DatasetDict
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PreTrainedModel, PrinterCallback
from transformers.trainer_utils import EvalLoopOutput, HubStrategy
from transformers.utils.hub import PushInProgress

from . import inputs, self_training
from .ensemble import Ensemble
from .few_shot import accuracy_and_f1, aim_labels, as_matrix, part_labels, pseudo_label, refinement_beside
from .fitted import FittedLabels
from .losses import Float32Attention, LabelMatrixLoss, WeightedFocalLoss
from .model import SurpriseModel
from .model_files import CONFIG, FOLDER
from .ops import unit_rows
from .trainer_callbacks import AimAtExamples, StopOnCrossEntropy
from .training_arguments import SurpriseTrainingArguments
from .training_data import LABEL, TEXT, WEIGHT, LabelCollator, prepare, restore

__all__ = ["SurpriseTrainer", "SurpriseTrainingArguments"]

AIMS = "aims.safetensors"  # of a checkpoint
LABELS_PER_DOCUMENT = 4  # a step encodes at most so many label texts for each document (docs/training.md)
NO_DOCUMENTS = "self-training needs unlabelled documents: pass ensemble=[...] to the trainer"


class SurpriseTrainer(SentenceTransformerTrainer):
    """Fine-tunes an encoder so that documents lie near their labels: between name and examples, as far as these agree.

    Args:
        model: a SurpriseModel or SentenceTransformer (its modules are trained in place), or None with `model_init`.
        args: SurpriseTrainingArguments.
        train_dataset: rows with a text and its label (a name, a number, a ClassLabel, a list of these, or nothing),
            as a `datasets.Dataset`, a DataFrame, or dicts. See `few_shot.read_targets`. Blank texts are left out.
        eval_dataset: the same, or a dict of several.
        labels: the label set; None takes that of the training set (its ClassLabel, or the labels that occur).
        hypothesis_template: what to embed for a label; None takes the model's.
        ensemble: unlabelled documents of the kind to be labelled, which make the ensemble of the trained model; its
            labels are refined on them (`args.refine`), unless there are no more of them than of the training texts, and
            training goes on with those it is surest of where that pays by what is known (`args.self_training`).
            None: the training texts, without refinement.
        compute_metrics: of an EvalPrediction with scores (n, m) and targets (n, m) bool.
        kwargs: of SentenceTransformerTrainer (callbacks, optimizers, evaluator, model_init, ...). `loss` may be a
            WeightedFocalLoss.

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

    training_args_class = SurpriseTrainingArguments
    loss_is_scaled_for_ga = False  # a batch's mean: without this, accumulation over n batches counts it n-fold
    model: SurpriseModel
    loss: LabelMatrixLoss  # type: ignore[assignment]
    args: SurpriseTrainingArguments
    push_in_progress: Any

    def __init__(
        self,
        model: SentenceTransformer | None = None,
        args: SurpriseTrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        labels: Any = None,
        hypothesis_template: str | None = None,
        ensemble: Any = None,
        loss: WeightedFocalLoss | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        args = SurpriseTrainingArguments(output_dir="tmp_trainer") if args is None else args
        self.labels = None if labels is None else inputs.as_labels(labels)
        self.template, self.ensemble = hypothesis_template, ensemble
        self._focal, self._metrics, self._columns = loss, compute_metrics, args
        self._fit_step: int | None = None  # the step whose weights the model's ensemble belongs to
        self._held: list[Tensor] = []  # weights that don't train
        self._aims: dict[str, Tensor] | None = None
        train_dataset = self.preprocess_dataset(train_dataset, "train")
        eval_dataset = self.preprocess_dataset(eval_dataset, "eval")
        if args.self_training and ensemble is None:
            raise ValueError(NO_DOCUMENTS)
        if self.labels is None:
            raise ValueError("no labels: pass labels=[...], or a train_dataset that has them")
        model = None if model is None else self._as_model(model)
        super().__init__(model=model, args=args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        self.add_callback(AimAtExamples(self))
        self.add_callback(StopOnCrossEntropy(self, args.stop_cross_entropy))

    def _as_model(self, model: SentenceTransformer) -> SurpriseModel:
        """With labels and template stored, and one prompt for documents and labels."""
        model = SurpriseModel.from_encoder(model)
        prompts = self._columns.prompts
        if isinstance(prompts, dict) and prompts:
            raise ValueError("documents and labels share one prompt: give prompts as a string, or a model with one")
        if prompts:
            model.prompts["surprise"] = str(prompts)
            model.default_prompt_name = "surprise"
        template = inputs.check_template(model.hypothesis_template if self.template is None else self.template)
        if not isinstance(template, str):
            raise ValueError("training takes one hypothesis_template; average several when labelling")
        self.template = template
        refine = self._columns.refine
        refine = "auto" if refine is None and self.ensemble is not None else refine
        rounds = int(refine) if refine is not None and str(refine).isdigit() else refine
        return model.set_labels(self.labels, template, refine=rounds, weight=self._columns.surprise_weight)

    def call_model_init(self, trial: Any = None) -> SurpriseModel:
        """A fresh model for each search trial, prepared as the one given would be."""
        return self._as_model(cast("SentenceTransformer", super().call_model_init(trial)))

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """As in the base class, but no training texts are drawn for its card's examples, with a progress bar: the card
        of a model with labels is our own.
        """
        card = self.model.model_card_data
        before, card.widget = card.widget, card.widget or [{}]  # where there are some it looks for none
        super().add_model_card_callback(default_args_dict)
        card.widget = before

    # --- data ----------------------------------------------------------------------------------------------------

    def preprocess_dataset(self, dataset: Any = None, dataset_name: str | None = None) -> Any:
        """The columns text, label (positions of its labels) and weight of any kind of rows; other columns are left out.

        Raises:
            ValueError: a column is not found, or a label is not in the label set; the message names the row.
        """
        if dataset is None or (self.labels and getattr(dataset, "_surprise_labels", None) is self.labels):
            return dataset
        if isinstance(dataset, dict) and not isinstance(dataset, Dataset):
            return DatasetDict({name: self.preprocess_dataset(part, name) for name, part in dataset.items()})
        columns = self._columns.text_column, self._columns.label_column, self._columns.weight_column
        prepared, self.labels = prepare(dataset, dataset_name, self.labels, *columns)
        prepared._surprise_labels = self.labels  # noqa: SLF001 (so that it is not prepared twice)
        return prepared

    def get_data_collator(self, model: Any, args: Any, processing_class: Any = None) -> LabelCollator:
        """Documents are tokenised with the model's prompt."""
        del processing_class
        assert self.labels is not None
        return LabelCollator(
            preprocess_fn=model.preprocess,
            router_mapping=args.router_mapping,
            prompts=model._default_prompt or None,  # noqa: SLF001
            label_count=len(self.labels),
        )

    def get_train_dataloader(self) -> DataLoader:
        """As in the base class, but in a distributed run the last batches are filled up from the first."""
        if self.args.world_size == 1 or self.train_dataset is None:
            return super().get_train_dataloader()
        self.accelerator.even_batches = True
        loader = self._build_dataloader(self.train_dataset, self.args.train_batch_size, dataset_kind="train")
        self._train_dataloader = self.accelerator.prepare(loader)
        return self._train_dataloader

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Rows to predict need no label column."""
        return super().get_test_dataloader(self.preprocess_dataset(test_dataset, "test"))

    # --- training ------------------------------------------------------------------------------------------------

    def get_default_loss(self, model: Any) -> LabelMatrixLoss:
        """The loss of the arguments over this label set."""
        args, focal = self._columns, self._focal
        assert self.labels is not None
        assert isinstance(self.template, str)
        if focal is None:
            weight = self._balanced() if args.class_weight == "balanced" else None
            focal = WeightedFocalLoss(args.gamma, args.epsilon, args.probability, args.delta, args.balanced, weight)
        most = LABELS_PER_DOCUMENT * args.train_batch_size * args.world_size
        return LabelMatrixLoss(
            model,
            inputs.hypotheses(self.labels, self.template),
            focal,
            most if args.labels_per_step is None else args.labels_per_step,
            model._default_prompt or None,  # noqa: SLF001
        )

    def _balanced(self) -> Tensor:
        """(m,) weights n / (labels that occur * count), 1 on average over the labelled documents."""
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        count = as_matrix(self.train_dataset[LABEL], len(self.labels)).sum(dim=0).double()
        return torch.where(count > 0, count.sum() / (count > 0).sum() / count.clamp(min=1), 1.0)

    def collect_features(self, inputs: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        """Features of the documents, and targets with weights."""
        features, positive = super().collect_features(inputs)
        return features, (positive, inputs.get("sample_weight"))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in every Trainer; afterwards the model's ensemble and labels belong to the trained weights."""
        self._fit_step = self._aims = None
        self.model.set_ensemble(None)
        try:
            result = super().train(*args, **kwargs)
        finally:
            for weight in self._held:
                weight.requires_grad_(True)
            self._held = []
        self._refit()
        self._self_train()
        return result

    def _aim(self) -> None:
        """What the loss sees documents and labels from, as the encoder is before training (`few_shot.aim_labels`)."""
        if not self._columns.mix_examples or not isinstance(self.train_dataset, Dataset):
            self.loss.aim()
            return
        if self._aims is None:  # else they are those of a checkpoint
            self._aims = dict(zip(("offset", "centre"), aim_labels(*self._examples()), strict=True))
        self.loss.aim(**{name: x.to(self.args.device) for name, x in self._aims.items()})

    def _examples(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the names (m, d) and of the training texts (n, d), and which text has which label (n, m)."""
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        examples, _ = self.model.embed(list(self.train_dataset[TEXT]), batch_size=self.args.eval_batch_size)
        return self._name_vectors(), examples, as_matrix(self.train_dataset[LABEL], len(self.labels))

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As in every Trainer, without the word embeddings unless they are to be trained."""
        if not self._columns.train_word_embeddings:
            encoders = [module for module in self.model.modules() if isinstance(module, PreTrainedModel)]
            found = {id(w): w for encoder in encoders for w in encoder.get_input_embeddings().parameters()}
            self._held += [weight for weight in found.values() if weight.requires_grad]
            for weight in self._held:
                weight.requires_grad_(False)
        return super().create_optimizer(*args, **kwargs)

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As in every Trainer, without dropout unless it is asked for, and on some CPUs with products in bfloat16."""
        recomputing = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
        if model.training and not self._columns.dropout:
            for module in model.modules():
                module.training = module in recomputing  # which they do in training only
        options = self.args
        if (
            not options.bf16_on_cpu
            or options.device.type != "cpu"
            or options.bf16  # or the base class does it, or torch.compile, or where activations are computed again
            or options.fp16
            or options.torch_compile
            or recomputing
        ):
            return super().compute_loss(model, *args, **kwargs)
        with torch.autocast("cpu", torch.bfloat16), Float32Attention():
            return super().compute_loss(model, *args, **kwargs)

    def _refit(self) -> None:
        """Fit the model's ensemble and labels, unless they were at this step. No text is encoded twice."""
        documents, mix = self.ensemble, self._columns.mix_examples and self.state.global_step
        if documents is None and self.train_dataset is not None:
            documents = self.train_dataset[TEXT]
        if documents is None or self._fit_step == self.state.global_step:
            return
        if mix and isinstance(self.train_dataset, Dataset):
            options = dict(self.model.fit_options)
            self.model.set_labels(None)  # not to be fitted before they are mixed
            names, examples, positive = self._examples()
            if self.ensemble is None:
                self.model.set_ensemble(Ensemble.from_embeddings(examples.cpu(), encoder=self.model.encoder_name))
            else:
                self.model.fit_ensemble(documents, batch_size=self.args.eval_batch_size)
                if self._columns.refine is None:
                    assert self.model.ensemble is not None
                    options["refine"] = refinement_beside(len(examples), len(self.model.ensemble))
            vectors = part_labels(names, examples, positive)
            self.model.set_labels(self.labels, self.template, vectors=vectors, **options)
        else:
            self.model.fit_ensemble(documents, batch_size=self.args.eval_batch_size)
        self._fit_step = self.state.global_step

    def _name_vectors(self) -> Tensor:
        """(m, d) embeddings of the labels' names."""
        assert self.labels is not None
        assert isinstance(self.template, str)
        return self.model.name_vectors(self.labels, self.template)

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
        agreement = self_training.agreement(z, looked_at, parted)
        if wanted is None and agreement < self_training.AGREED:
            return
        texts = [text for _, part, _ in inputs.chunks(self.ensemble, 1024) for text in part]
        found = self_training.joining(z, model.ensemble, texts, self.train_dataset[TEXT])
        rows = self._joined({text: label for text, (_, label) in found.items()})
        examples = self._examples()[1]
        embedded = torch.cat([examples, looked_at[[at for at, _ in found.values()]].to(examples)])
        self.log({"self_training": len(found), "agreement": round(agreement, 4)})
        self._fit_step = None  # also where what follows is interrupted
        kind: dict[str, Any] = {"labels": self.labels, "hypothesis_template": self.template, "loss": self._focal}
        _GoingOn(model, self._columns, rows, embedded, **kind).train()
        self._refit()

    def _may_self_train(self) -> bool:
        """By itself only with enough labels and examples, of one label each, where labels are refined on documents and
        no other end was asked for: a number of steps, or the checkpoint that was measured best.
        """
        wanted, args, rows, labels = self._columns.self_training, self.args, self.train_dataset, len(self.labels or ())
        if self.ensemble is None or not isinstance(rows, Dataset) or labels < 2:
            return False
        if wanted is not None:
            return wanted
        refined = self._columns.mix_examples and self.model.fit_options.get("refine") == "auto"
        ends = args.max_steps > 0 or args.load_best_model_at_end
        again = iter(self.ensemble) is not self.ensemble  # documents can be read once more
        enough = labels >= self_training.LABELS and len(rows) >= self_training.EXAMPLES * labels
        return enough and refined and not ends and again and all(len(one) < 2 for one in rows[LABEL])

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """The model as a folder for the pipeline. The arguments are not pickled beside it."""
        del state_dict
        if self.is_in_train or self.state.global_step:  # the latter where the last fit was interrupted
            self._refit()
        path = str(output_dir or self.args.output_dir)
        self.model.save_pretrained(path)
        self._save_aims(path)

    def _save_aims(self, path: str) -> None:
        """Of a checkpoint: what was found before training cannot be found again when it goes on."""
        if self.is_in_train and self._aims is not None:
            save_file({name: x.cpu() for name, x in self._aims.items()}, Path(path, AIMS))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """A checkpoint as it is, without what only resuming needs; the base class would pickle the arguments too."""
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            super()._push_from_checkpoint(checkpoint_folder)
            return
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done() and not self.args.hub_always_push:
            return
        job = HfApi().upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=checkpoint_folder,
            commit_message=f"Training in progress, step {self.state.global_step}",
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            ignore_patterns=["*.bin", "*.pt", "*.pth", "trainer_state.json", AIMS],
            run_as_future=True,
        )
        jobs: Any = [job]
        self.push_in_progress = PushInProgress(jobs)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]  # as sentence-transformers
        """Weights, ensemble and labels; the base class loads the weights alone."""
        super()._load_from_checkpoint(checkpoint_path)
        aims = Path(checkpoint_path, AIMS)
        self._aims = load_file(aims) if aims.exists() else None
        if Path(checkpoint_path, FOLDER, CONFIG).exists():
            name = self.model.encoder_name
            self.model._load_surprise(str(checkpoint_path), {})  # noqa: SLF001
            self.model.encoder_name = self.model.encoder_name or name
            if self.model.candidate_labels != self.labels:
                raise ValueError(
                    f"{checkpoint_path} was trained for other labels: {self.model.candidate_labels}, not {self.labels}"
                )
        self._fit_step = None

    # --- evaluation ----------------------------------------------------------------------------------------------

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
        training. The ensemble is that given to the trainer, else the evaluated documents themselves, as in the paper. A
        document with r labels gets the r best ones, so that for r = 1 this is the usual accuracy; documents without a
        label count in the loss only.

        Returns:
            predictions (n, m) float32 scores, label_ids (n, m) bool, and metrics <prefix>_loss,
            <prefix>_cross_entropy, <prefix>_cosine_accuracy, <prefix>_cosine_f1, <prefix>_surprise_accuracy,
            <prefix>_surprise_f1, those of `compute_metrics` and of the evaluator.
        """
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
        positive = as_matrix(rows[LABEL], len(self.labels))
        emb, _ = self.model.embed(texts, batch_size=self.args.eval_batch_size)
        if self._columns.mix_examples and self.state.global_step:
            self._refit()
        vectors = self.model.label_vectors(self.labels, self.model.hypothesis_template).to(emb.device)
        found = {}
        with torch.no_grad():
            if positive.any():
                keys, queries = self.loss.document_rows(emb), self.loss.label_rows(self._name_vectors().to(emb.device))
                loss, cross_entropy = self.loss.focal(keys, queries, positive.to(emb.device))
                found = {"loss": float(loss), "cross_entropy": float(cross_entropy)}
            fitted = FittedLabels.fit(vectors, self._context(texts, emb), **self.model.fit_options)
            k = max(int(positive.sum(dim=1).max()), 1) if texts else 1
            decided = {
                "cosine": torch.topk(unit_rows(emb) @ unit_rows(vectors).T, k, dim=1).indices,
                "surprise": fitted.rank(emb, k)[1],
            }
            scores = fitted.score(emb).float().cpu().numpy()
        for way, best in decided.items():
            if positive.any():
                found |= {f"{way}_{name}": value for name, value in accuracy_and_f1(best.cpu(), positive).items()}
        if positive.any():
            data = {"eval": "the evaluation set", "test": "the test set"}.get(metric_key_prefix, metric_key_prefix)
            self.model.record_results(data, {name: value for name, value in found.items() if "_" in name})
        if self._metrics is not None:
            found |= self._metrics(EvalPrediction(predictions=scores, label_ids=positive.numpy()))
        metrics |= {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        return EvalLoopOutput(scores, positive.numpy(), metrics, len(texts))

    def _context(self, texts: Sequence[str], emb: Tensor) -> Any:
        if self.ensemble is not None:
            self._refit()
            return self.model.ensemble
        kept = [row for row, text in enumerate(texts) if not inputs.is_blank(text)]
        return emb[kept] if kept else emb


class _GoingOn(SurpriseTrainer):
    """Trains another's model for an epoch on more rows (n), whose embeddings (n, d) are known: no checkpoint, no
    evaluation, nothing said or fitted.
    """

    def __init__(
        self, model: SurpriseModel, args: SurpriseTrainingArguments, rows: Dataset, embedded: Tensor, **kwargs: Any
    ) -> None:
        self.embedded = embedded
        args = replace(
            args,
            num_train_epochs=1,
            max_steps=-1,
            stop_cross_entropy=None,
            self_training=False,
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            load_best_model_at_end=False,
            push_to_hub=False,
            report_to="none",
        )
        super().__init__(model, args, rows, **kwargs)
        self.remove_callback(PrinterCallback)

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """The card tells of the training that the user started."""

    def _examples(self) -> tuple[Tensor, Tensor, Tensor]:
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        return self._name_vectors(), self.embedded, as_matrix(self.train_dataset[LABEL], len(self.labels))

    def _refit(self) -> None:
        """The other one does."""
