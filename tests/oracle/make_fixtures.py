#!/usr/bin/env python3
"""Writes the fixtures of tests/data: tiny Qwen3-MoE checkpoints and what `transformers` computes from them.

Every fixture is a directory with

    config.json            the model, as `transformers` saves it (or in the spelling of its version 4)
    model.safetensors      the weights (or an index and its shards)
    expected.safetensors   the inputs, the outputs and the gradients

expected.safetensors holds, under the names `transformers` uses,

    input_ids, labels [B,S] int64                 always
    attention_mask, position_ids, shift_labels    [B,S] int64, where the fixture passes them
    compare_mask [B,S] int64                      with an attention_mask: 1 where outputs are to be compared
    logits [B,S,V] f32
    token_loss [B,S] f32                          cross-entropy of the label that the logits at [b,s] predict, else 0
    loss [] f32                                   sum of token_loss / number of such labels
    grad.<parameter> f32                          gradient of loss, by the parameter names of the running model
                                                  (experts stacked, gate above up), whatever the names on disk

All computation is f32, with eager attention and eager experts, on one thread and without a cache.
Weights that are saved in a narrower format are rounded to it first, so the expected values belong to the saved weights.
"""

import argparse
import copy
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

IGNORED = -100  # the label that is not trained on
ROUTING_MARGIN = 1e-4  # least distance of the k-th and the (k+1)-th routing probability
CONTRAST = 1e-2  # least change of the logits when what a fixture is about is switched off
SIZE_LIMIT = 5_000_000  # bytes of all fixtures together


@dataclass(frozen=True)
class Fixture:
    """One row of the table below. `model` holds fields of Qwen3MoeConfig; `head_dim` is saved only where given."""

    about: str
    model: dict
    batch: int
    length: int
    starts: tuple = ()  # per row, the first position of position_ids
    documents: tuple = ()  # per row, the lengths of the packed documents; position_ids restart at each
    padding: tuple = ()  # per row, (left, right) padding, told by attention_mask
    shift_labels: bool = False  # labels are passed shifted too, with a real one at the last position
    dtype: torch.dtype = torch.float32  # of the saved weights
    old_config: bool = False  # config.json is spelled as transformers 4 did
    fused_experts: bool = False  # experts are saved stacked, not one by one
    shard_bytes: int = 0  # the most bytes of a shard; 0: one file
    contrast: dict = field(default_factory=dict)  # fields of Qwen3MoeConfig that must change the logits


COMMON = {
    "initializer_range": 0.2,  # large enough that logits and routing are far from ties
    "max_position_embeddings": 256,
    "norm_topk_prob": True,
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
        contrast={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
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
        contrast={"use_sliding_window": False},
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
        contrast={"rope_parameters": {"rope_type": "default", "rope_theta": 32.0}},
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
        contrast={"norm_topk_prob": True},
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
}


def make_model(fixture, seed, **overrides):
    """The model in f32 with seeded weights: norms around one, biases not zero, all rounded to the saved format."""
    config = Qwen3MoeConfig(**copy.deepcopy({**COMMON, **fixture.model, **overrides}))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = Qwen3MoeForCausalLM(config).eval()
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
        inputs["position_ids"] = torch.tensor(fixture.starts)[:, None] + torch.arange(length)
    if fixture.documents:
        rows = [torch.cat([torch.arange(n) for n in documents]) for documents in fixture.documents]
        inputs["position_ids"] = torch.stack(rows)
    if fixture.shift_labels:
        inputs["shift_labels"] = torch.cat([labels[:, 1:], following], dim=1)
    return inputs, real


def document_starts(documents):
    return [sum(documents[:i]) for i in range(len(documents))]


def without_labels(inputs):
    return {name: value for name, value in inputs.items() if "labels" not in name}


@torch.no_grad()
def logits_of(model, inputs):
    return model(**without_labels(inputs), use_cache=False).logits


@torch.no_grad()
def routing_margin(model, inputs, real):
    """The least distance of the last chosen and the first rejected routing probability, over real tokens and layers."""
    layers = model(**without_labels(inputs), use_cache=False, output_router_logits=True).router_logits
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
    loss = output.loss.detach()
    torch.testing.assert_close(token_loss.sum() / (targets != IGNORED).sum(), loss, rtol=1e-6, atol=0)

    gradients = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": logits, "token_loss": token_loss, "loss": loss, **gradients}


def every_expert_learns(outputs):
    """Whether each expert of each layer gets a gradient: one without tokens would prove nothing."""
    stacked = [value for name, value in outputs.items() if ".experts." in name]
    return all(value.flatten(1).abs().amax(dim=1).gt(0).all() for value in stacked)


def check_outputs(name, fixture, model, inputs, outputs, seed):
    """Asserts that the values are what the fixture claims to be about."""
    for key, value in outputs.items():
        assert value.dtype == torch.float32 and value.isfinite().all(), f"{name}: {key} is not finite f32"
        assert value.abs().max() > 0, f"{name}: {key} is zero everywhere"
    if fixture.contrast:
        other = logits_of(make_model(fixture, seed, **fixture.contrast), inputs)
        change = (other - outputs["logits"]).abs().max()
        assert change > CONTRAST, f"{name}: {fixture.contrast} changes the logits by {change} only"
    for row, documents in enumerate(fixture.documents):
        for start, length in zip(document_starts(documents), documents):
            alone = logits_of(model, {"input_ids": inputs["input_ids"][row : row + 1, start : start + length]})
            torch.testing.assert_close(alone[0], outputs["logits"][row, start : start + length], rtol=1e-5, atol=1e-5)
    for row, (left, right) in enumerate(fixture.padding):
        real = slice(left, fixture.length - right)
        alone = {
            "input_ids": inputs["input_ids"][row : row + 1, real],
            "position_ids": torch.arange(fixture.length)[None, real],  # padding does not move the positions
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


def check_checkpoint(name, folder, inputs, logits):
    """Asserts that the saved checkpoint is complete and gives the same logits."""
    model, info = Qwen3MoeForCausalLM.from_pretrained(
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
    check_checkpoint(name, folder, inputs, outputs["logits"])
    masks = {"compare_mask": real} if fixture.padding else {}
    tensors = {key: value.clone().contiguous() for key, value in {**inputs, **masks, **outputs}.items()}
    save_file(tensors, folder / "expected.safetensors", metadata={"format": "pt"})
    for path in folder.iterdir():
        path.chmod(0o644)
    return f"seed {seed}, routing margin {margin:.1e}, loss {outputs['loss'].item():.4f}"


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
