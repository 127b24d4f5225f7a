#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that `transformers` loads a checkpoint directory completely and can run it; prints "ok".

Exit status: 0 ok, 1 a check failed, 2 bad usage.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

INPUTS = ("input_ids", "inputs_embeds", "attention_mask", "position_ids", "labels", "shift_labels")


def fail(message):
    print(f"check_checkpoint: {message}", file=sys.stderr)
    raise SystemExit(1)


def load_model(directory):
    """The model in f32, after failing on keys that are missing, not expected, of another shape or not convertible."""
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True,
    )
    problems = [f"{kind}: {sorted(map(str, found))}" for kind, found in info.items() if found]
    if problems:
        fail("; ".join(problems))
    return model.eval()


def random_inputs(model, arguments):
    generator = torch.Generator().manual_seed(arguments.seed)
    shape = (arguments.batch, arguments.length)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    return {"input_ids": ids, "labels": ids}


def compare(name, actual, expected, mask, tolerance):
    """Fails unless max|actual - expected| <= tolerance * max|expected| at the positions of the mask."""
    if actual.shape != expected.shape:
        fail(f"{name}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if mask is not None:
        actual, expected = actual[mask], expected[mask]
    actual, expected = actual.double(), expected.double()
    if not expected.isfinite().all():
        fail(f"{name}: the expected values are not finite")
    if not expected.any():
        fail(f"{name}: the expected values are all zero")
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    if not error <= tolerance:
        fail(f"{name}: error {error:.3e}, at most {tolerance:.3e} allowed")
    print(f"{name}: error {error:.3e}")


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    argument = parser.add_argument
    argument("directory", type=Path, help="checkpoint: config.json and safetensors")
    argument("--expected", type=Path, metavar="FILE", help="safetensors with logits (and loss) to match")
    argument("--inputs", type=Path, metavar="FILE", help="safetensors with inputs (default: those of --expected)")
    argument("--tolerance", type=float, default=1e-5, help="max|a-b| / max|b| allowed (default: %(default)s)")
    argument("--batch", type=int, default=2, help="rows of random ids (default: %(default)s)")
    argument("--length", type=int, default=16, help="length of random ids (default: %(default)s)")
    argument("--seed", type=int, default=0, help="seed of random ids (default: %(default)s)")
    arguments = parser.parse_args()
    if not (arguments.directory / "config.json").is_file():
        parser.error(f"{arguments.directory}: no config.json there")
    for path in (arguments.expected, arguments.inputs):
        if path and not path.is_file():
            parser.error(f"{path}: no such file")

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = load_model(arguments.directory)

    expected = load_file(arguments.expected) if arguments.expected else {}
    source = load_file(arguments.inputs) if arguments.inputs else expected
    inputs = {name: source[name] for name in INPUTS if name in source}
    if not inputs:
        if expected:
            parser.error(f"{arguments.inputs or arguments.expected}: no inputs there, name a file with --inputs")
        inputs = random_inputs(model, arguments)
    if "shift_labels" in inputs:
        inputs.setdefault("labels", inputs["shift_labels"])  # without labels there is no loss at all

    # A cache would hide packed documents, which are told by position_ids alone.
    output = model(**inputs, use_cache=False)
    mask = source.get("compare_mask", inputs.get("attention_mask"))
    mask = None if mask is None else mask.bool()
    logits = output.logits if mask is None else output.logits[mask]
    if not logits.isfinite().all():
        fail("logits: not finite")
    if expected:
        if "logits" not in expected:
            parser.error(f"{arguments.expected}: no logits there")
        compare("logits", output.logits, expected["logits"], mask, arguments.tolerance)
        if "loss" in expected and output.loss is not None:
            compare("loss", output.loss.reshape(1), expected["loss"].reshape(1), None, arguments.tolerance)
    print("ok")


if __name__ == "__main__":
    main()
