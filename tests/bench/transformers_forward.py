#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The forward that bench_device measures, by the public implementation on the same GPU: layers of Qwen3-30B-A3B with
random weights in bfloat16, one row of 4096 tokens, logits and loss of all tokens. Needs `torch` and `transformers`;
give it the number of layers that bench_device printed.

    python3 tests/bench/transformers_forward.py --layers 48

Prints one row for each way that this version knows to multiply experts. Exit status 3 without a GPU, or without the
packages."""
import argparse
import sys
import time

try:
    import torch
    import transformers
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as e:
    print(f"transformers_forward: {e}", file=sys.stderr)
    sys.exit(3)


def config_of(layers, small):
    dims = dict(hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, vocab_size=151936)
    if small:  # as of bench_device --small
        dims = dict(hidden_size=64, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                    num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, vocab_size=512)
    return Qwen3MoeConfig(num_hidden_layers=layers, max_position_embeddings=40960, norm_topk_prob=True,
                          tie_word_embeddings=False, use_cache=False, dtype=torch.bfloat16, **dims)


def random_model(config, device, experts):
    """Weights are made where they are used: the host need not hold them."""
    kwargs = dict(attn_implementation="sdpa")
    if experts:
        kwargs["experts_implementation"] = experts
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3MoeForCausalLM._from_config(config, **kwargs)
    finally:
        torch.set_default_dtype(old)
    return model.eval()


@torch.no_grad()
def milliseconds(model, ids, repeats):
    wait = torch.cuda.synchronize if ids.is_cuda else lambda: None
    model(input_ids=ids, labels=ids)
    seconds = 0
    for _ in range(repeats):  # the mean, as bench_device says it
        wait()
        start = time.perf_counter()
        model(input_ids=ids, labels=ids)
        wait()
        seconds += time.perf_counter() - start
    return seconds / repeats * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--small", action="store_true", help="numbers that say nothing: it shows that all runs")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("transformers_forward: torch finds no GPU", file=sys.stderr)
        return 3
    torch.manual_seed(3)
    config = config_of(args.layers, args.small)
    ids = torch.randint(config.vocab_size, (1, args.length), device=args.device)
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    done = 0
    for experts in ("grouped_mm", None):  # None: as this version does by default
        try:
            model = random_model(config, args.device, experts)
            ms = milliseconds(model, ids, 1 if args.small else 5)
        except (TypeError, ValueError, AttributeError, RuntimeError, torch.OutOfMemoryError) as e:
            print(f"transformers/{experts or 'default'}: {type(e).__name__}: {str(e).splitlines()[0]}", file=sys.stderr)
            continue
        finally:
            model = None
            if args.device == "cuda":
                torch.cuda.empty_cache()
        done += 1
        print(f"transformers/{experts or 'default'} {ms:.1f} ms, layers={args.layers} "
              f"(transformers {transformers.__version__}, torch {torch.__version__}, {name})")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
