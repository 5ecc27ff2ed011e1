"""LabelTrainer: an encoder, a fixed set of labels, and the steps that bring documents near their labels.

A step encodes its documents and the label texts once each and compares all with all (`losses.LabelMatrixLoss`). After
training the ensemble is fitted anew with the trained weights. `SurpriseTrainer` adds what comes around the steps.
Paper: section 3.2 (training).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from typing import Any, cast

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PreTrainedModel

from . import inputs
from .ensemble import Ensemble
from .few_shot import aim_labels, part_labels, refinement_beside
from .float32_attention import Float32Attention
from .losses import LabelMatrixLoss, WeightedFocalLoss
from .model import SurpriseModel
from .model_files import label_keys
from .targets import as_matrix
from .trainer_callbacks import AimAtExamples, StopOnCrossEntropy
from .training_arguments import SurpriseTrainingArguments
from .training_data import LABEL, TEXT, WEIGHT, LabelCollator, is_columns, prepare, read_documents

LABELS_PER_DOCUMENT = 4  # a step encodes at most so many label texts for each document (docs/training.md)
FOCAL = ("gamma", "epsilon", "probability", "delta", "balanced")  # options of the focal loss, as arguments too
FITTED = ("ensemble", "_fitted", "candidate_labels", "fit_options", "_given")  # of a model, what belongs to its weights
NO_DOCUMENTS = "self-training needs unlabelled documents: pass ensemble=[...] to the trainer"


ADAPTED = (
    "the encoder is wrapped by peft, and a folder of it could not be read again: merge the adapter before saving"
    " (docs/training.md, LoRA)"
)


def is_adapted(model: Any) -> bool:
    """Is any module of it wrapped by peft?"""
    peft = sys.modules.get("peft")
    inner = [] if model is None else model.modules()  # between two trials of a search there is none
    return peft is not None and any(isinstance(module, peft.PeftModel) for module in inner)


class LabelTrainer(SentenceTransformerTrainer):
    """What `SurpriseTrainer` documents, without self-training, checkpoints of a pipeline and evaluation."""

    training_args_class = SurpriseTrainingArguments
    loss_is_scaled_for_ga = False  # a batch's mean: without this, accumulation over n batches counts it n-fold
    model: SurpriseModel
    loss: LabelMatrixLoss  # type: ignore[assignment]
    args: SurpriseTrainingArguments

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
        _check_types(model, args, loss)
        if loss is not None:
            args = copy(args)
            for name in FOCAL:
                setattr(args, name, getattr(loss, name))  # for the card
        self.labels = None if labels is None else inputs.as_labels(labels)
        self._are_named_by_data = labels is None
        if len({isinstance(label, str) for label in self.labels or ()}) > 1:
            raise ValueError(f"the labels mix names and numbers ({self.labels!r}): use one kind")
        self.template, self.ensemble = hypothesis_template, None if ensemble is None else read_documents(ensemble)
        self._focal, self._metrics, self._columns = loss, compute_metrics, args
        self._stored: dict[str, Any] = {}  # options that the model came with
        self._is_trained = False  # whether `train` came to its end, with whatever number of steps
        self._fit_step: int | None = None  # the step whose weights the model's ensemble belongs to
        self._held: list[Tensor] = []  # weights that don't train
        self._memory: dict[str, Tensor] = {}  # of the loss, as a checkpoint has it
        train_dataset = self.preprocess_dataset(train_dataset, "train")
        if isinstance(train_dataset, dict):
            raise ValueError(f"train_dataset holds several data sets ({', '.join(train_dataset)}): give one of them")
        given, eval_dataset = eval_dataset, self.preprocess_dataset(eval_dataset, "eval")
        self._eval_given = given, eval_dataset  # and what was made of it
        if args.self_training and ensemble is None:
            raise ValueError(NO_DOCUMENTS)
        if self.labels is None:
            raise ValueError("no labels: pass labels=[...], or a train_dataset that has them")
        if args.class_weight is not None and train_dataset is None:
            raise ValueError("class_weight='balanced' counts the labels of a train_dataset, and there is none")
        model = None if model is None else self._as_model(model)
        super().__init__(model=model, args=args, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs)
        self._own_optimizer = self.optimizer is not None  # an object, which knows this training's weights alone
        self.add_callback(AimAtExamples(self))
        self.add_callback(StopOnCrossEntropy(self))

    def _as_model(self, model: SentenceTransformer) -> SurpriseModel:
        """With labels and template stored, and one prompt for documents and labels."""
        model, args = SurpriseModel.from_encoder(model), self._columns
        if isinstance(args.prompts, dict) and args.prompts:
            raise ValueError("documents and labels share one prompt: give prompts as a string, or a model with one")
        template = inputs.check_template(model.hypothesis_template if self.template is None else self.template)
        if not isinstance(template, str):
            raise ValueError("training takes one hypothesis_template; average several when labelling")
        assert self.labels is not None
        if self._are_named_by_data:
            self.labels = inputs.described_as(self.labels, model.candidate_labels)
        self.template, read_as = template, model._default_prompt  # noqa: SLF001
        if args.prompts:
            model.prompts["surprise"] = str(args.prompts)
            model.default_prompt_name = "surprise"
        same_prompt = model._default_prompt == read_as  # noqa: SLF001
        if not same_prompt:
            model.set_ensemble(None)  # its documents were read otherwise, and so were the labels' vectors
        self._stored = model.fit_options
        options = {**self._stored, **self._said()}
        same = model.stores(self.labels) and template == model.hypothesis_template and options == self._stored
        if same and same_prompt:
            return model
        given = model._given if same_prompt else None  # noqa: SLF001
        known = set() if given is None else {key[1:] for key in given[0]}  # by their texts
        moved = any(key[1:] in known for key in label_keys(self.labels, template))
        vectors = model.label_vectors(self.labels, template) if moved else None
        return model.set_labels(self.labels, template, vectors=vectors, **options)

    def _said(self) -> dict[str, Any]:
        """What the arguments say of how labels are scored."""
        args = self._columns
        refine = "auto" if args.refine is None and self.ensemble is not None else args.refine
        said = {"refine": refine, "weight": args.surprise_weight}
        return {name: value for name, value in said.items() if value is not None}

    def scoring(self) -> dict[str, Any]:
        """The options that trained labels are fitted with: those that the model came with, and what is said of them."""
        return {**self._stored, "refine": None, **self._said()}

    def call_model_init(self, trial: Any = None) -> SurpriseModel:
        """A fresh model for each search trial, prepared as the one given would be."""
        return self._as_model(cast("SentenceTransformer", super().call_model_init(trial)))

    def _hp_search_setup(self, trial: Any) -> None:
        """Labels are fitted as the arguments of the trial say."""
        super()._hp_search_setup(trial)
        if trial is not None:
            self._columns.check_scoring()
            self._as_model(self.model)
            self._set_up_loss()

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
        if dataset is None:
            return None
        if isinstance(dataset, dict) and not is_columns(dataset):
            return DatasetDict({name: self.preprocess_dataset(part, dataset_name) for name, part in dataset.items()})
        columns = self._columns.text_column, self._columns.label_column, self._columns.weight_column
        prepared, self.labels = prepare(dataset, dataset_name, self.labels, *columns)
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

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in every Trainer, of rows of any kind; and of an `eval_dataset` that was set later."""
        given, prepared = self._eval_given
        if eval_dataset is not None and eval_dataset is given:
            eval_dataset = prepared
        if eval_dataset is None or isinstance(eval_dataset, str):
            prepared = self.preprocess_dataset(self.eval_dataset, "eval")
            if prepared is not self.eval_dataset:
                self.eval_dataset = prepared
                getattr(self, "_eval_dataloaders", {}).clear()  # persistent workers keep those of other rows
        else:
            eval_dataset = self.preprocess_dataset(eval_dataset, "eval")
        return super().evaluate(eval_dataset, *args, **kwargs)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """Rows to predict need no label column."""
        return super().get_test_dataloader(self.preprocess_dataset(test_dataset, "test"))

    # --- training ------------------------------------------------------------------------------------------------

    def get_default_loss(self, model: Any) -> LabelMatrixLoss:
        """The loss of the arguments over this label set."""
        assert self.labels is not None
        assert isinstance(self.template, str)
        texts = inputs.hypotheses(self.labels, self.template)
        prompt = model._default_prompt or None  # noqa: SLF001
        return LabelMatrixLoss(model, texts, self._focal_loss(), self._labels_per_step(), prompt)

    def _focal_loss(self) -> WeightedFocalLoss:
        """That given, or that of the arguments."""
        if self._focal is not None:
            return self._focal
        args = self._columns
        weight = self._balanced() if args.class_weight == "balanced" else None
        return WeightedFocalLoss(args.gamma, args.epsilon, args.probability, args.delta, args.balanced, weight)

    def _set_up_loss(self) -> None:
        """As the arguments are now, which may have changed since the trainer was made."""
        self.loss.labels_per_step, focal = self._labels_per_step(), self._focal_loss().to(self.args.device)
        for name in (*FOCAL, "class_weight"):
            setattr(self.loss.focal, name, getattr(focal, name))

    def _labels_per_step(self) -> int:
        args = self._columns
        most = LABELS_PER_DOCUMENT * args.train_batch_size * args.world_size
        return most if args.labels_per_step is None else args.labels_per_step

    def _balanced(self) -> Tensor:
        """(m,) weights n / (labels that occur * count), 1 on average over the labelled documents."""
        count = self._positive().sum(dim=0).double()
        return torch.where(count > 0, count.sum() / (count > 0).sum() / count.clamp(min=1), 1.0)

    def collect_features(self, inputs: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
        """Features of the documents, and targets with weights."""
        features, positive = super().collect_features(inputs)
        return features, (positive, inputs.get("sample_weight"))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in every Trainer; afterwards the model's ensemble and labels belong to the trained weights."""
        if is_adapted(self.model) and (self.args.save_strategy != "no" or self.args.load_best_model_at_end):
            raise ValueError(f"{ADAPTED}; train with save_strategy='no' and without load_best_model_at_end")
        self.train_dataset = self.preprocess_dataset(self.train_dataset, "train")  # it may be another one by now
        self._columns.check_scoring()  # and so may the arguments
        self._set_up_loss()
        self._fit_step, self._memory = None, {}
        self._is_trained = self._is_trained and self.model_init is None
        model = self.model
        before = None if model is None else {name: getattr(model, name) for name in FITTED}
        try:
            result = super().train(*args, **kwargs)
        except BaseException:
            if before is not None and not self.state.global_step:  # no weight has changed
                for name, value in before.items():
                    setattr(model, name, value)
            raise
        finally:
            for weight in self._held:
                weight.requires_grad_(True)
            self._held = []
        if not self.state.global_step:
            self._fit_step = None
        self._is_trained = True
        self._refit()
        return result

    def _aim(self) -> None:
        """What the loss sees documents and labels from, as a checkpoint has it, or as the encoder is before training
        (`few_shot.aim_labels`).
        """
        if self._memory:
            self.loss.remember({name: x.to(self.args.device) for name, x in self._memory.items()})
        elif self._columns.mix_examples and isinstance(self.train_dataset, Dataset):
            found = aim_labels(*self._examples(), weight=self._weights())
            self.loss.aim(*(x.to(self.args.device) for x in found))
        else:
            self.loss.aim()

    def _examples(self) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings of the names (m, d) and of the training texts (n, d), and which text has which label (n, m)."""
        assert isinstance(self.train_dataset, Dataset)
        examples, _ = self.model.embed(list(self.train_dataset[TEXT]), batch_size=self.args.eval_batch_size)
        return self._name_vectors(), examples, self._positive()

    def _positive(self) -> Tensor:
        """(n, m) bool: which training text has which label."""
        assert self.labels is not None
        assert isinstance(self.train_dataset, Dataset)
        return as_matrix(self.train_dataset[LABEL], len(self.labels))

    def _weights(self) -> Tensor | None:
        """(n,) weights of the training texts, or None where they all count once."""
        assert isinstance(self.train_dataset, Dataset)
        return torch.tensor(self.train_dataset[WEIGHT]) if WEIGHT in self.train_dataset.column_names else None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As in every Trainer, without the word embeddings unless they are to be trained."""
        if not self._columns.train_word_embeddings:
            encoders = [module for module in self.model.modules() if isinstance(module, PreTrainedModel)]
            found = {id(w): w for encoder in encoders for w in _word_embeddings(encoder)}
            self._held += [weight for weight in found.values() if weight.requires_grad]
            for weight in self._held:
                weight.requires_grad_(False)
        if not any(weight.requires_grad for weight in self.model.parameters()):
            raise ValueError(
                "no weight of the encoder would be trained: all are frozen (as peft leaves those it has merged an"
                " adapter into), or word embeddings; set requires_grad, or open the saved folder again"
            )
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
        documents, rows, trained = self.ensemble, self.train_dataset, self._is_trained or self.state.global_step > 0
        if documents is None and rows is not None:
            documents = rows[TEXT]
        if documents is None or self._fit_step == self.state.global_step:
            return
        report = dict(self.model.report)  # its results are of these weights
        if self._columns.mix_examples and isinstance(rows, Dataset) and trained:
            options = self.scoring()
            names, examples, positive = self._examples()
            self.model.set_labels(None)  # not to be fitted before they are mixed
            if self.ensemble is None:
                self.model.set_ensemble(Ensemble.from_embeddings(examples.cpu(), encoder=self.model.encoder_name))
            else:
                self.model.fit_ensemble(documents, batch_size=self.args.eval_batch_size)
                if self._columns.refine is None:
                    assert self.model.ensemble is not None
                    options["refine"] = refinement_beside(int(positive.any(dim=1).sum()), len(self.model.ensemble))
            vectors = part_labels(names, examples, positive, weight=self._weights())
            self.model.set_labels(self.labels, self.template, vectors=vectors, **options)
        else:
            self.model.fit_ensemble(documents, batch_size=self.args.eval_batch_size)
        self.model.report = report
        self._fit_step = self.state.global_step

    def _name_vectors(self) -> Tensor:
        """(m, d) embeddings of the labels' names."""
        assert self.labels is not None
        assert isinstance(self.template, str)
        return self.model.name_vectors(self.labels, self.template)


def _check_types(model: Any, args: Any, loss: Any) -> None:
    for name, given, wanted in (
        ("args", args, SurpriseTrainingArguments),
        ("model", model, SentenceTransformer),
        ("loss", loss, WeightedFocalLoss),
    ):
        if given is not None and not isinstance(given, wanted):
            raise ValueError(f"{name} must be a {wanted.__name__}, got {given!r}")
    if loss is not None and args.class_weight is not None:
        raise ValueError("class_weight is of the trainer's own loss: give WeightedFocalLoss(class_weight=...)")


def _word_embeddings(encoder: PreTrainedModel) -> list[nn.Parameter]:
    """Empty where transformers can't tell which they are."""
    try:
        return list(encoder.get_input_embeddings().parameters())
    except NotImplementedError:
        return []
