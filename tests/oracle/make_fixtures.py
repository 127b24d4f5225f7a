#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the fixtures of tests/data: tiny checkpoints and what `transformers` computes from them.

The models are of Qwen3-MoE, and where a fixture says so of the dense families Qwen3 and Mistral.

Every fixture is a directory with

    config.json            the model, as `transformers` saves it (or in the spelling of its version 4)
    model.safetensors      the weights (or an index and its shards)
    expected.safetensors   the inputs, the outputs and the gradients

expected.safetensors holds, under the names `transformers` uses,

    input_ids [B,S] int64                         always but where inputs_embeds [B,S,H] f32 takes its place
    labels [B,S] int64                            always
    attention_mask, position_ids, shift_labels    [B,S] int64, where the fixture passes them
    cu_seq_lens_q [N+1] int64                     with `borders`: the N documents' starts in the B*S tokens, and B*S
    compare_mask [B,S] int64                      with an attention_mask: 1 where outputs are to be compared
    logits [B,S,V] f32
    token_loss [B,S] f32                          cross-entropy of the label that the logits at [b,s] predict, else 0
    loss [] f32                                   sum of token_loss / number of such labels; where config.json has
                                                  output_router_logits, plus router_aux_loss_coef * aux_loss
    aux_loss [] f32                               with output_router_logits: the balance of the experts' loads
    grad.<parameter> f32                          gradient of loss, by the parameter names of the running model
                                                  (experts stacked, gate above up), whatever the names on disk;
                                                  zeros for embed_tokens where inputs_embeds are given

All computation is f32, with eager attention and eager experts, on one thread and without a cache.
Weights that are saved in a narrower format are rounded to it first, so the expected values belong to the saved weights.
"""

import argparse
import copy
import itertools
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file
from transformers import (
    MistralConfig, MistralForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
)
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

IGNORED = -100  # the label that is not trained on
ROUTING_MARGIN = 1e-4  # least distance of the k-th and the (k+1)-th routing probability
CONTRAST = 1e-2  # least change of the outputs when what a fixture is about is switched off
SIZE_LIMIT = 5_000_000  # bytes of all fixtures together


@dataclass(frozen=True)
class Fixture:
    """One row of the table below. `model` holds fields of the family's configuration class.

    Qwen3-MoE saves `head_dim` only where it is given.
    """

    about: str
    model: dict
    batch: int
    length: int
    family: str = "qwen3_moe"  # a key of FAMILIES
    starts: tuple = ()  # per row, the first position of position_ids
    steps: tuple = ()  # per row, with starts: from a position to the next, over and over; else 1
    documents: tuple = ()  # per row, the lengths of the packed documents; position_ids restart at each
    borders: bool = False  # the documents are stored as cu_seq_lens_q too
    padding: tuple = ()  # per row, (left, right) padding, told by attention_mask
    shift_labels: bool = False  # labels are passed shifted too, with a real one at the last position
    embeds: bool = False  # inputs_embeds take the place of input_ids
    dtype: torch.dtype = torch.float32  # of the saved weights
    old_config: bool = False  # config.json is spelled as transformers 4 did
    fused_experts: bool = False  # experts are saved stacked, not one by one
    shard_bytes: int = 0  # the most bytes of a shard; 0: one file
    contrasts: tuple = ()  # other values of fields of the configuration, each of which must change the logits
    needs: tuple = ()  # inputs without each of which the logits must be others


FAMILIES = {
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"norm_topk_prob": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {}),
}

COMMON = {
    "initializer_range": 0.2,  # large enough that logits and routing are far from ties
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}

FIXTURES = {
    "tiny": Fixture(
        about="every layer MoE, as the published models; the checkpoint of examples",
        model={
            "num_hidden_layers": 8, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 96,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        },
        batch=4, length=16,
    ),
    "sparse_step": Fixture(
        about="dense and MoE layers mixed; old spelling of config.json, no head_dim in it; positions start late",
        model={
            "num_hidden_layers": 6, "hidden_size": 24, "intermediate_size": 20, "vocab_size": 50,
            "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10,
            "decoder_sparse_step": 2, "mlp_only_layers": [3],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        batch=3, length=11, starts=(3, 3, 3), old_config=True,
        contrasts=({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},),
    ),
    "tied": Fixture(
        about="the head is the embedding; as many key/value heads as query heads",
        model={
            "num_hidden_layers": 2, "hidden_size": 20, "intermediate_size": 24, "vocab_size": 40,
            "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "tie_word_embeddings": True,
        },
        batch=2, length=13,
    ),
    "attention_bias": Fixture(
        about="biases on the four projections of attention; shift_labels with a real label at the last position",
        model={
            "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 24, "vocab_size": 52,
            "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4,
            "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 8,
            "attention_bias": True,
        },
        batch=2, length=11, starts=(3, 20), shift_labels=True,
    ),
    "sliding": Fixture(
        about="a sliding window in all layers; a sharded checkpoint with an index",
        model={
            "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 24, "vocab_size": 48,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "use_sliding_window": True, "sliding_window": 4,
        },
        batch=2, length=13, shard_bytes=36_000,
        contrasts=({"use_sliding_window": False}, {"sliding_window": 3}, {"sliding_window": 5}),
    ),
    "yarn": Fixture(
        about="YaRN rotary scaling (old spelling), longer than the original maximum; the ramp has inner points",
        model={
            "num_hidden_layers": 2, "hidden_size": 28, "intermediate_size": 24, "vocab_size": 46,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10,
            "max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 32.0, "factor": 4.0, "original_max_position_embeddings": 16,
            },
        },
        batch=2, length=21, starts=(3, 17), old_config=True,
        contrasts=({"rope_parameters": {"rope_type": "default", "rope_theta": 32.0}},),
    ),
    "no_norm_topk": Fixture(
        about="routing weights that do not add up to one, 3 of 5 experts; experts saved stacked",
        model={
            "num_hidden_layers": 2, "hidden_size": 28, "intermediate_size": 24, "vocab_size": 44,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
            "norm_topk_prob": False,
        },
        batch=3, length=11, fused_experts=True,
        contrasts=({"norm_topk_prob": True},),
    ),
    "wide_heads": Fixture(
        about="heads * head_dim is not the hidden size; weights in BF16",
        model={
            "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 20, "vocab_size": 54,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 14,
        },
        batch=2, length=13, starts=(0, 5), dtype=torch.bfloat16,
    ),
    "f16": Fixture(
        about="weights in F16; a row without padding, one padded on the right and one padded on the left",
        model={
            "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 20, "vocab_size": 42,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10,
        },
        batch=3, length=13, padding=((0, 0), (0, 4), (3, 0)), dtype=torch.float16,
    ),
    "packed": Fixture(
        about="several documents in a row, told only by position_ids that restart at 0",
        model={
            "num_hidden_layers": 2, "hidden_size": 20, "intermediate_size": 24, "vocab_size": 45,
            "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8,
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        },
        batch=2, length=13, documents=((5, 7, 1), (3, 10)),
    ),
    "packed_cu": Fixture(
        about="documents of one token at the start and at the end of a row, their borders stored cumulated",
        model={
            "num_hidden_layers": 2, "hidden_size": 20, "intermediate_size": 24, "vocab_size": 45,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        },
        batch=2, length=13, documents=((1, 7, 5), (1, 2, 9, 1)), borders=True,
        needs=("position_ids",),
    ),
    "gaps": Fixture(
        about="position_ids with gaps, which an attention_mask of ones keeps from telling documents",
        model={
            "num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 20, "vocab_size": 54,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 14,
        },
        batch=2, length=13, starts=(0, 5), steps=((1, 3, 1, 2), (2, 1, 1, 4, 1)), padding=((0, 0), (0, 0)),
        needs=("position_ids", "attention_mask"),
    ),
    "embeds": Fixture(
        about="inputs_embeds instead of input_ids",
        model={
            "num_hidden_layers": 2, "hidden_size": 20, "intermediate_size": 24, "vocab_size": 43,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
            "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
        },
        batch=2, length=11, embeds=True,
    ),
    "auxiliary": Fixture(
        about="the loss has the auxiliary loss of the routers in it; a row padded on the right; a dense layer",
        model={
            "num_hidden_layers": 3, "hidden_size": 20, "intermediate_size": 28, "vocab_size": 49,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "mlp_only_layers": [1],
            "output_router_logits": True, "router_aux_loss_coef": 0.02,
        },
        batch=2, length=13, padding=((0, 0), (0, 4)),
    ),
    "mistral": Fixture(
        about="Mistral: dense, no norms of queries and keys, a sliding window in all layers",
        family="mistral",
        model={
            "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 36, "vocab_size": 46,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
            "sliding_window": 4, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
        batch=2, length=13,
        contrasts=(
            {"sliding_window": None}, {"sliding_window": 3}, {"sliding_window": 5},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        ),
    ),
    "qwen3_dense_mix": Fixture(
        about="Qwen3: dense, norms of queries and keys, layer_types that max_window_layers alone would not give; tied",
        family="qwen3",
        model={
            "num_hidden_layers": 4, "hidden_size": 20, "intermediate_size": 28, "vocab_size": 45,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2,
            "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
        batch=2, length=13,
        contrasts=(
            {"layer_types": None}, {"layer_types": ["full_attention"] * 4}, {"layer_types": ["sliding_attention"] * 4},
            {"layer_types": ["full_attention", "sliding_attention"] * 2}, {"sliding_window": 3}, {"sliding_window": 5},
        ),
    ),
}


def make_model(fixture, seed, **overrides):
    """The model in f32 with seeded weights: norms around one, biases not zero, all rounded to the saved format."""
    make_config, make, common = FAMILIES[fixture.family]
    config = make_config(**copy.deepcopy({**COMMON, **common, **fixture.model, **overrides}))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = make(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * config.initializer_range
            if name.endswith("norm.weight"):
                values += 1
            parameter.copy_(values.to(fixture.dtype))
    return model


def make_inputs(fixture, seed):
    """The inputs of the model by name, and the mask of the positions that are to be compared."""
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    batch, length = fixture.batch, fixture.length
    ids = torch.randint(fixture.model["vocab_size"], (batch, length + 1), generator=generator)
    ids, following = ids[:, :-1].contiguous(), ids[:, -1:]
    real = torch.ones(batch, length, dtype=torch.int64)
    for row, (left, right) in enumerate(fixture.padding):
        real[row, :left] = 0
        real[row, length - right :] = 0

    labels = ids.masked_fill(real == 0, IGNORED)
    # A padded position must not be trained to predict the first real token, nor a document's end the next document.
    labels[:, 1:].masked_fill_(real[:, :-1] == 0, IGNORED)
    for row, documents in enumerate(fixture.documents):
        for start in document_starts(documents):
            labels[row, start] = IGNORED
    # A different number of ignored labels in each row.
    for row in range(batch):
        candidates = labels[row, 1:].ne(IGNORED).nonzero().flatten() + 1
        chosen = torch.randperm(len(candidates), generator=generator)[: 1 + 2 * row]
        labels[row, candidates[chosen]] = IGNORED

    inputs = {"input_ids": ids, "labels": labels}
    if fixture.padding:
        inputs["attention_mask"] = real
    if fixture.starts:
        rows = fixture.steps or ((1,),) * batch
        rises = [[0, *itertools.islice(itertools.cycle(steps), length - 1)] for steps in rows]
        inputs["position_ids"] = torch.tensor(fixture.starts)[:, None] + torch.tensor(rises).cumsum(dim=1)
    if fixture.documents:
        rows = [torch.cat([torch.arange(n) for n in documents]) for documents in fixture.documents]
        inputs["position_ids"] = torch.stack(rows)
    if fixture.shift_labels:
        inputs["shift_labels"] = torch.cat([labels[:, 1:], following], dim=1)
    if fixture.embeds:
        del inputs["input_ids"]
        embeds = torch.randn(batch, length, fixture.model["hidden_size"], generator=generator)
        inputs["inputs_embeds"] = embeds * COMMON["initializer_range"]
    return inputs, real


def document_starts(documents):
    return [sum(documents[:i]) for i in range(len(documents))]


def document_borders(fixture, position_ids):
    """cu_seq_lens_q, as transformers finds it in position_ids; asserts that it tells the fixture's documents."""
    (borders, _), _ = prepare_fa_kwargs_from_position_ids(position_ids)
    lengths = [length for documents in fixture.documents for length in documents]
    assert borders.diff().tolist() == lengths, f"documents of {borders.diff().tolist()} tokens, not {lengths}"
    return borders.to(torch.int64)


def without_labels(inputs):
    return {name: value for name, value in inputs.items() if "labels" not in name}


@torch.no_grad()
def logits_of(model, inputs):
    return model(**without_labels(inputs), use_cache=False).logits


@torch.no_grad()
def router_logits_of(model, inputs):
    """[B*S,E] of every MoE layer."""
    if model.config.model_type != "qwen3_moe":
        return ()
    return model(**without_labels(inputs), use_cache=False, output_router_logits=True).router_logits


def routing_margin(model, inputs, real):
    """The least distance of the last chosen and the first rejected routing probability, over real tokens and layers."""
    layers = router_logits_of(model, inputs)
    if not layers:
        return float("inf")
    chosen = model.config.num_experts_per_tok
    margins = []
    for router_logits in layers:
        ranked = router_logits.softmax(dim=-1).sort(dim=-1, descending=True).values
        margins.append((ranked[:, chosen - 1] - ranked[:, chosen])[real.flatten() == 1].min())
    return min(margins).item()


def evaluate(model, inputs):
    """The outputs and gradients, by the names of expected.safetensors."""
    model.zero_grad()
    output = model(**inputs, use_cache=False)
    output.loss.backward()

    logits = output.logits.detach()
    targets = inputs.get("shift_labels")
    if targets is None:
        targets = torch.nn.functional.pad(inputs["labels"], (0, 1), value=IGNORED)[:, 1:]
    token_loss = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
    )
    losses = {"loss": output.loss.detach()}
    total = token_loss.sum() / (targets != IGNORED).sum()
    if getattr(output, "aux_loss", None) is not None:
        losses["aux_loss"] = output.aux_loss.detach()
        total = total + model.config.router_aux_loss_coef * losses["aux_loss"]
    torch.testing.assert_close(total, losses["loss"], rtol=1e-6, atol=0)

    unused = {"model.embed_tokens.weight"} if "inputs_embeds" in inputs else set()
    gradients = {}
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (name in unused), f"{name}: a gradient where none was expected, or none"
        gradients[f"grad.{name}"] = torch.zeros_like(parameter) if name in unused else parameter.grad
    return {"logits": logits, "token_loss": token_loss, **losses, **gradients}


def every_expert_learns(outputs):
    """Whether each expert of each layer gets a gradient: one without tokens would prove nothing."""
    stacked = [value for name, value in outputs.items() if ".experts." in name]
    return all(value.flatten(1).abs().amax(dim=1).gt(0).all() for value in stacked)


def balance_of(layers, chosen, weights):
    """The auxiliary loss written a second time, for router logits [B*S,E] of layers and a weight of every token.

    Over the tokens of all layers together: how often a token chooses an expert, on average, times the expert's mean
    probability; summed over the experts, times their number.
    """
    probabilities = torch.cat(layers).double().softmax(dim=-1)
    choices = torch.zeros_like(probabilities).scatter(1, probabilities.topk(chosen).indices, 1)
    weights = weights.flatten().double().repeat(len(layers))[:, None] / (weights.sum() * len(layers))
    return ((choices * weights).sum(dim=0) * (probabilities * weights).sum(dim=0)).sum() * probabilities.shape[1]


def check_auxiliary(name, fixture, model, inputs, outputs, seed):
    """Asserts that aux_loss is the formula's, with its mask and over all layers at once, and that it matters."""
    layers, chosen = router_logits_of(model, inputs), model.config.num_experts_per_tok
    assert 1 < len(layers) < model.config.num_hidden_layers, f"{name}: {len(layers)} MoE layers"
    mask, found = inputs["attention_mask"], outputs["aux_loss"].double()
    torch.testing.assert_close(balance_of(layers, chosen, mask), found, rtol=1e-6, atol=0)
    others = {
        "without the mask": balance_of(layers, chosen, torch.ones_like(mask)),
        "layer by layer": torch.stack([balance_of([layer], chosen, mask) for layer in layers]).mean(),
    }
    for how, other in others.items():
        assert (other - found).abs() > CONTRAST, f"{name}: aux_loss {how} is {other}, not far from {found}"
    plain = evaluate(make_model(fixture, seed, output_router_logits=False), inputs)
    assert (plain["loss"] - outputs["loss"]).abs() > CONTRAST, f"{name}: the loss is the same without aux_loss"
    for key, value in outputs.items():
        if key.endswith("mlp.gate.weight"):
            change = (plain[key] - value).abs().max() / value.abs().max()
            assert change > CONTRAST, f"{name}: aux_loss changes {key} by a share of {change} only"


def check_outputs(name, fixture, model, inputs, outputs, seed):
    """Asserts that the values are what the fixture claims to be about."""
    for key, value in outputs.items():
        assert value.dtype == torch.float32 and value.isfinite().all(), f"{name}: {key} is not finite f32"
        is_unused = fixture.embeds and key == "grad.model.embed_tokens.weight"
        assert value.any() != is_unused, f"{name}: {key} is {'not ' if is_unused else ''}zero everywhere"
    for contrast in fixture.contrasts:
        other = logits_of(make_model(fixture, seed, **contrast), inputs)
        change = (other - outputs["logits"]).abs().max()
        assert change > CONTRAST, f"{name}: {contrast} changes the logits by {change} only"
    for needed in fixture.needs:
        other = logits_of(model, {key: value for key, value in inputs.items() if key != needed})
        change = (other - outputs["logits"]).abs().max()
        assert change > CONTRAST, f"{name}: without {needed} the logits change by {change} only"
    if "aux_loss" in outputs:
        check_auxiliary(name, fixture, model, inputs, outputs, seed)
    if fixture.embeds:
        distances = torch.cdist(inputs["inputs_embeds"], model.model.embed_tokens.weight.detach())
        change = (logits_of(model, {"input_ids": distances.argmin(dim=-1)}) - outputs["logits"]).abs().max()
        assert change > CONTRAST, f"{name}: the nearest input_ids change the logits by {change} only"
    for row, documents in enumerate(fixture.documents):
        for start, length in zip(document_starts(documents), documents):
            alone = logits_of(model, {"input_ids": inputs["input_ids"][row : row + 1, start : start + length]})
            torch.testing.assert_close(alone[0], outputs["logits"][row, start : start + length], rtol=1e-5, atol=1e-5)
    positions = inputs.get("position_ids", torch.arange(fixture.length).expand(fixture.batch, -1))
    for row, (left, right) in enumerate(fixture.padding):
        real = slice(left, fixture.length - right)
        alone = {
            "input_ids": inputs["input_ids"][row : row + 1, real],
            "position_ids": positions[row : row + 1, real],  # padding does not move the positions
            "attention_mask": inputs["attention_mask"][row : row + 1, real],
        }
        torch.testing.assert_close(logits_of(model, alone)[0], outputs["logits"][row, real], rtol=1e-5, atol=1e-5)


def old_spelling(config):
    """config.json as transformers 4 wrote it."""
    config = dict(config)
    rope = config.pop("rope_parameters")
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope["rope_type"], **scaling}
    config["num_experts"] = config.pop("num_local_experts")
    config["torch_dtype"] = config.pop("dtype")
    config["max_window_layers"] = config["num_hidden_layers"]
    config["transformers_version"] = "4.51.0"
    return config


def save_checkpoint(fixture, model, folder):
    saved = copy.deepcopy(model).to(fixture.dtype)
    sharding = {"max_shard_size": fixture.shard_bytes} if fixture.shard_bytes else {}
    saved.save_pretrained(folder, save_original_format=not fixture.fused_experts, **sharding)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if fixture.old_config:
        path = folder / "config.json"
        config = old_spelling(json.loads(path.read_text()))
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def check_checkpoint(name, fixture, folder, inputs, logits):
    """Asserts that the saved checkpoint is complete and gives the same logits."""
    model, info = FAMILIES[fixture.family][1].from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True,
    )
    problems = {key: value for key, value in info.items() if value}
    assert not problems, f"{name}: {problems}"
    torch.testing.assert_close(logits_of(model.eval(), inputs), logits, rtol=0, atol=0)


def make_fixture(name, fixture, folder):
    """Writes one fixture to an empty folder, with the first seed that routes clearly and reaches every expert."""
    for seed in range(1000):
        model = make_model(fixture, seed)
        inputs, real = make_inputs(fixture, seed)
        margin = routing_margin(model, inputs, real)
        if margin <= ROUTING_MARGIN:
            continue
        outputs = evaluate(model, inputs)
        if every_expert_learns(outputs):
            break
    else:
        raise RuntimeError(f"{name}: no seed routes every token clearly and reaches every expert")

    check_outputs(name, fixture, model, inputs, outputs, seed)
    save_checkpoint(fixture, model, folder)
    check_checkpoint(name, fixture, folder, inputs, outputs["logits"])
    extras = {}
    if fixture.padding:
        extras["compare_mask"] = real
    if fixture.borders:
        extras["cu_seq_lens_q"] = document_borders(fixture, inputs["position_ids"])
    tensors = {key: value.clone().contiguous() for key, value in {**inputs, **extras, **outputs}.items()}
    save_file(tensors, folder / "expected.safetensors", metadata={"format": "pt"})
    for path in folder.iterdir():
        path.chmod(0o644)
    routing = f"routing margin {margin:.1e}, " if margin < float("inf") else ""
    return f"seed {seed}, {routing}loss {outputs['loss'].item():.4f}"


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parent.parent / "data",
        help="directory of the fixtures (default: ../data beside this script); named fixtures in it are replaced",
    )
    parser.add_argument("--only", nargs="+", choices=FIXTURES, metavar="NAME", help="make only these fixtures")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or FIXTURES:
        with tempfile.TemporaryDirectory(dir=arguments.output, prefix=f".{name}.") as parent:
            folder = Path(parent) / name
            folder.mkdir()
            summary = make_fixture(name, FIXTURES[name], folder)
            target = arguments.output / name
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)
        print(f"{name}: {summary}, {size_of(target)} bytes")

    total = sum(size_of(arguments.output / name) for name in FIXTURES if (arguments.output / name).is_dir())
    print(f"together {total} bytes")
    if total > SIZE_LIMIT:
        raise SystemExit(f"more than {SIZE_LIMIT} bytes of fixtures")


if __name__ == "__main__":
    main()
