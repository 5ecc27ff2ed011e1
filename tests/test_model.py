"""SurpriseModel: the same encoder, and what it carries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoTokenizer

from surprise_hf import Ensemble, SurpriseIndex, SurpriseModel, encoding, inputs
from tests.model_data import DOCUMENTS, LABELS, fitted, load, plain

# --- where it comes from ---------------------------------------------------------------------------------------------

OPENERS = {
    "model": SurpriseModel,
    "from_pretrained": SurpriseModel.from_pretrained,
    "subfolder": lambda name: SurpriseModel.from_pretrained(name, subfolder="part"),
    "ensemble": Ensemble.from_pretrained,
    "index": SurpriseIndex.from_pretrained,
}


@pytest.mark.parametrize("open_", OPENERS)
@pytest.mark.parametrize("name", ["{}/nope", "./nope", "nope/", "../x/y", "a/b/c", "C:\\x", "~/m"])
def test_a_folder_that_is_not_there(open_, name, tmp_path, monkeypatch):
    """No word of repositories' rules: whoever writes a path means a folder."""
    monkeypatch.chdir(tmp_path)
    name = name.format(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        OPENERS[open_](name)
    assert f"no such folder: {name!r}; of a repository on the Hub give owner/name" in str(caught.value)


def test_no_name_at_all():
    for opener in (SurpriseModel, SurpriseModel.from_pretrained):
        with pytest.raises(FileNotFoundError, match="no such folder: ''"):
            opener("")


@pytest.mark.parametrize("open_", OPENERS)
def test_a_file_in_place_of_a_folder(open_, tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(NotADirectoryError, match=r"model.safetensors is a file: give the folder that it lies in"):
        OPENERS[open_](str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["owner/name", "name", "owner/a.b-c_d"])
def test_names_of_repositories_are_asked_for_at_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for opener in OPENERS.values():
        with pytest.raises(OSError, match="cache"):  # there is no Hub in the tests
            opener(name)


# --- the encoder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["st_path", "bert_path", "minilm_path"])
def test_embeddings_are_those_of_sentence_transformers(kind, request):
    path = request.getfixturevalue(kind)
    emb, cut = load(path).embed(DOCUMENTS)
    np.testing.assert_array_equal(emb.numpy(), plain(path).encode(DOCUMENTS))
    assert cut == 0
    assert emb.dtype == torch.float32
    assert not emb.is_inference()


def test_a_repository_without_modules_json_gets_mean_pooling(bert_path):
    model = load(bert_path)
    tokens = model.tokenizer(["dog cat sport"], return_tensors="pt")
    with torch.no_grad():
        hidden = model.transformers_model(**tokens).last_hidden_state
    torch.testing.assert_close(model.embed(["dog cat sport"])[0], hidden.mean(dim=1))


def test_dense_layer_and_bfloat16_weights(bert_path, tmp_path):
    """As sentence-t5 has them: pooling, a projection to another dimension, normalising, in half precision."""
    torch.manual_seed(0)
    encoder = Transformer(str(bert_path))
    parts = [encoder, Pooling(32), Dense(32, 12, activation_function=torch.nn.Tanh()), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").bfloat16().save_pretrained(str(tmp_path))
    model = load(tmp_path)
    reference = plain(tmp_path)
    assert model.dtype == reference.dtype == torch.bfloat16
    assert model.dim == 12
    emb, _ = model.embed(DOCUMENTS)
    np.testing.assert_array_equal(emb.numpy(), reference.encode(DOCUMENTS))
    assert torch.isfinite(model.fit_ensemble(DOCUMENTS).set_labels(LABELS).fitted.score(emb)).all()


def test_stored_prompt_is_used_on_both_sides(bert_path, tmp_path):
    prompts = {"query": "query: ", "passage": "passage: "}
    plain(bert_path, prompts=prompts, default_prompt_name="query").save_pretrained(str(tmp_path))
    bare, model = plain(bert_path), load(tmp_path)
    np.testing.assert_array_equal(model.embed(["dog"])[0].numpy(), bare.encode(["query: dog"]))
    vectors = model.label_vectors(["dog"], "this is {}").numpy()
    np.testing.assert_array_equal(vectors, bare.encode(["query: this is dog"]))


def test_truncated_dimensions(st_path):
    model = load(st_path, truncate_dim=8)
    assert model.dim == 8
    np.testing.assert_array_equal(model.embed(["dog"])[0].numpy(), plain(st_path).encode(["dog"])[:, :8])
    assert model.fit_ensemble(DOCUMENTS).ensemble.dim == 8


def test_from_pretrained_speaks_transformers(st_path, tmp_path):
    model = load(
        st_path, dtype="float16", revision="main", token=False, trust_remote_code=None, attn_implementation="eager"
    )
    assert model.dtype == torch.float16
    assert model.config._attn_implementation == "eager"
    with pytest.raises(OSError, match="nowhere"):
        load(tmp_path / "nowhere" / "at" / "all")


def test_an_encoder_in_memory_shares_its_modules(st_path):
    prompt = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    encoder = plain(st_path, truncate_dim=16, similarity_fn_name="dot", **prompt)
    model = SurpriseModel.from_encoder(encoder)
    assert model[0] is encoder[0]
    assert (model.dim, model.similarity_fn_name) == (16, "dot")
    np.testing.assert_array_equal(model.embed(["dog"])[0].numpy(), encoder.encode(["dog"]))
    assert SurpriseModel.from_encoder(model) is model


def test_loaded_models_do_not_drop_out(st_path):
    assert not load(st_path).training


def test_texts_longer_than_the_window_are_counted(st_path):
    model = load(st_path)  # 64 tokens, two of them special
    texts = ["dog " * 62, "dog " * 63, "dog " * 10_000, "dog", "dog " * 62 + " " * 2000, "x" * 90, ""]
    emb, cut = model.embed(texts)
    assert cut == 3  # 63 and 10,000 words, and 90 letters, each a token; blanks are no token
    np.testing.assert_array_equal(emb.numpy(), plain(st_path).encode(texts))
    for update, documents in ((False, texts), (True, texts[1:4])):
        with pytest.warns(UserWarning, match=f"{3 - update} of {6 - 3 * update} documents are longer"):
            model.fit_ensemble(documents, update=update)


def test_a_left_padded_decoder(bert_path, tmp_path):
    """The embedding is that of SentenceTransformer.encode, whatever else is in the batch (case 9)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import LlamaConfig, LlamaModel

    tokenizer = AutoTokenizer.from_pretrained(bert_path, padding_side="left")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaModel(config).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    modules = [Transformer(str(tmp_path / "llama")), Pooling(32, "lasttoken")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "st"))
    texts = ["dog", "a long text about music and the stage of a band", "cheese and bread"]
    encoder = plain(tmp_path / "st")
    assert encoder.tokenizer.padding_side == "left"
    got = load(tmp_path / "st").embed(texts)[0].numpy()
    np.testing.assert_array_equal(got, encoder.encode(texts))
    np.testing.assert_allclose(got, np.stack([encoder.encode(text) for text in texts]), rtol=1e-4, atol=1e-5)


def test_a_t5_encoder_with_a_dense_layer(bert_path, tmp_path):
    """The shape of the paper's encoder: T5, mean pooling, Dense, Normalize, in bfloat16 too."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import T5Config, T5EncoderModel

    tokenizer = AutoTokenizer.from_pretrained(bert_path)
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    dense = Dense(32, 24, bias=False, activation_function=torch.nn.Identity())
    modules = [Transformer(str(tmp_path / "t5")), Pooling(32, "mean"), dense, Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "st"))
    texts = ["dog", "music on the stage", "cheese"]
    for dtype in (torch.float32, torch.bfloat16):
        encoder = SentenceTransformer(str(tmp_path / "st"), device="cpu", model_kwargs={"dtype": dtype})
        want = encoder.encode(texts, convert_to_tensor=True)
        got, _ = load(tmp_path / "st", model_kwargs={"dtype": dtype}).embed(texts)
        assert got.shape == (3, 24)
        assert torch.equal(got, want.float())


def test_a_prompt_counts_towards_the_window(st_path):
    model = load(st_path, prompts={"query": "query: "}, default_prompt_name="query")
    assert model.embed(["dog " * 60])[1] == 0
    assert model.embed(["dog " * 61])[1] == 1


def test_a_tokenizer_without_limit_is_cut_at_the_positions_of_the_model(bert_factory, tmp_path):
    model = load(bert_factory(tmp_path / "bert", max_length=None))
    emb, cut = model.embed(["dog " * 10_000])
    assert cut == 1
    assert torch.isfinite(emb).all()


def test_a_nan_embedding_names_row_and_text(st_path):
    model = load(st_path)
    with torch.no_grad():
        model.transformers_model.embeddings.word_embeddings.weight[model.tokenizer.vocab["guitar"]] = torch.nan
    with pytest.raises(ValueError, match=r"document 41 \('guitar music'\) is not finite, and 1 of 2"):
        model.embed(["dog", "guitar music"], rows=[7, 41])
    with pytest.raises(ValueError, match="document 3 "):
        model.fit_ensemble(["dog", "", "cat", "guitar"])
    assert model.ensemble is None


def test_label_vectors_follow_every_optimizer(st_path):
    """A fused AdamW changes weights without raising their version counter."""
    for fused in (False, True):
        model = load(st_path)
        before = model.label_vectors(LABELS, "{}")
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        model(model.preprocess(["dog"]))["sentence_embedding"].sum().backward()
        optimizer.step()
        after = model.label_vectors(LABELS, "{}")
        assert not torch.allclose(before, after, atol=1e-2)
        torch.testing.assert_close(after, model.embed(LABELS)[0])


# --- ensemble and labels ---------------------------------------------------------------------------------------------


def test_fit_ensemble_is_the_ensemble_of_the_embeddings(st_path):
    model = load(st_path).fit_ensemble((d for d in [*DOCUMENTS[:5], None, " ", *DOCUMENTS[5:]]), batch_size=1)
    expected = Ensemble.from_embeddings(torch.from_numpy(plain(st_path).encode(DOCUMENTS)))
    assert len(model.ensemble) == len(DOCUMENTS)
    queries = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(model.ensemble.moments(queries), expected.moments(queries), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_fit_ensemble_reads_more_than_one_chunk(st_path, monkeypatch):
    monkeypatch.setattr(encoding, "CHUNK", 2)
    model = load(st_path).fit_ensemble(DOCUMENTS, batch_size=5)
    assert len(model.ensemble) == len(DOCUMENTS)
    model.fit_ensemble(DOCUMENTS[:7], update=True)
    assert len(model.ensemble) == len(DOCUMENTS) + 7
    assert len(model.fit_ensemble(DOCUMENTS[:7]).ensemble) == 7


def test_an_ensemble_fitted_in_two_goes_is_that_of_one(st_path):
    """The sample too, of any seed, so that it can be made again."""
    first, rest = Ensemble(32, reservoir=3, seed=7), torch.from_numpy(plain(st_path).encode(DOCUMENTS))
    model = load(st_path)
    model.set_ensemble(first.update(rest[:9]))
    model.fit_ensemble(DOCUMENTS[9:], update=True)
    once = Ensemble(32, reservoir=3, seed=7).update(rest)
    torch.testing.assert_close(model.ensemble.reservoir, once.reservoir, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.ensemble.mean, once.mean, rtol=1e-5, atol=1e-6)
    assert (model.ensemble.seed, len(model.ensemble), len(first)) == (7, len(DOCUMENTS), 9)


def test_fit_ensemble_without_any_text(st_path):
    with pytest.raises(ValueError, match="none of the documents has any text"):
        load(st_path).fit_ensemble(["", None])


def test_labels_fit_whichever_comes_first(st_path):
    one = load(st_path).fit_ensemble(DOCUMENTS).set_labels(LABELS)
    two = load(st_path).set_labels(LABELS).fit_ensemble(DOCUMENTS)
    assert one.fitted.weight == two.fitted.weight == pytest.approx(np.tanh(len(DOCUMENTS) / 1000))
    torch.testing.assert_close(one.fitted.mean, two.fitted.mean, rtol=0, atol=0)


def test_a_refused_setting_changes_nothing(st_path):
    model = fitted(st_path, weight=1.0)
    before = model.fitted
    for labels, template, options in (
        (["a", "a"], None, {}),
        (["a"], "no slot", {}),
        (["a"], None, {"estimator": "x"}),
    ):
        with pytest.raises(ValueError, match=r"both 'a'|exactly once|estimator"):
            model.set_labels(labels, template, **options)
    assert model.fitted is before
    assert (model.candidate_labels, model.hypothesis_template) == (LABELS, "this matter is {}")
    assert model.fit_options == {"weight": 1.0}


def test_an_ensemble_of_another_dimension_is_refused(st_path):
    with pytest.raises(ValueError, match="7 dimensions, but this encoder gives 32"):
        load(st_path).set_ensemble(Ensemble(7))


def test_label_vectors_follow_the_weights(st_path):
    model = load(st_path)
    before = model.label_vectors(LABELS, "{}")
    assert model.label_vectors(LABELS, "{}") is before
    with torch.no_grad():
        model.transformers_model.encoder.layer[1].output.dense.weight.add_(0.5)
    assert not torch.equal(model.label_vectors(LABELS, "{}"), before)


def test_label_vectors_follow_adapters_and_settings(st_path):
    """Switching them changes no weight."""
    model = load(st_path)
    plain = model.label_vectors(LABELS, "{}")
    config = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    model[0].auto_model = adapted = get_peft_model(model[0].auto_model, config)
    with_adapter = model.label_vectors(LABELS, "{}")
    assert not torch.allclose(with_adapter, plain, atol=1e-3)
    with adapted.disable_adapter():
        torch.testing.assert_close(model.label_vectors(LABELS, "{}"), plain)
    torch.testing.assert_close(model.label_vectors(LABELS, "{}"), with_adapter)
    adapted.add_adapter("other", config)
    adapted.set_adapter("other")
    assert not torch.allclose(model.label_vectors(LABELS, "{}"), with_adapter, atol=1e-3)
    model[1].pooling_mode = "max"
    torch.testing.assert_close(model.label_vectors(LABELS, "{}"), model.embed(LABELS)[0])
    template = "dog " * 10 + "{}"
    model.name_vectors(LABELS, template)
    model.max_seq_length = 8
    with pytest.warns(UserWarning, match="3 of 3 labels are longer than the 8 tokens"):
        torch.testing.assert_close(
            model.name_vectors(LABELS, template), model.embed(inputs.hypotheses(LABELS, template))[0]
        )


def test_to_linear_is_z(st_path):
    model = fitted(st_path, weight=1.0)
    emb, _ = model.embed(DOCUMENTS)
    linear = model.to_linear()
    assert [type(part).__name__ for part in linear] == ["UnitRows", "Linear"]
    unit = torch.nn.functional.normalize(emb.double(), dim=1)
    psi = unit @ torch.nn.functional.normalize(model.label_vectors(LABELS, "this matter is {}").double(), dim=1).T
    expected = (psi - psi.mean(dim=0)) / psi.std(dim=0, correction=0)
    torch.testing.assert_close(linear(emb).double(), expected, rtol=1e-3, atol=1e-3)


def test_to_linear_says_what_it_leaves_out(st_path):
    with pytest.raises(ValueError, match="no labels are fitted"):
        load(st_path).to_linear()
    with pytest.warns(UserWarning, match=r"weight 0\.024"):
        fitted(st_path).to_linear()
    with pytest.warns(UserWarning, match="empirical estimator"):
        fitted(st_path, weight=1.0, estimator="empirical").to_linear()
