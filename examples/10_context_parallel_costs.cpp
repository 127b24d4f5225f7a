// SPDX-License-Identifier: Apache-2.0
// What attention over context-parallel ranks sends, per layer and rank: the plan's own account, counted collective by
// collective, and the closed forms that it agrees with. With c ranks, n = S / c tokens on each, H query heads and K
// key/value heads of D numbers, k = max(K / c, 1) (heads are copied when they run out):
//   Ulysses     2 n D (c - 1) (H / c + k)   forward, and as much backward
//   ring        2 n D (c - 1) K             forward; backward keys and values again, and their gradients c hops home
//   all-gather  2 n D (c - 1) K             forward; backward gathered again, and gradients scattered
// So Ulysses sends least once H / c + k < K: c > H / (K - 1) forward, c > H / (3K/2 - 1) in training.
#include <cstdio>
#include <cstdlib>
#include <shardplan/shardplan.hpp>

using namespace shardplan;
constexpr num length = 65536, element_bytes = 2;

constexpr num counted(model_spec m, cp_method method, num c, bool training) {
  m.num_hidden_layers = 1;
  plan_spec p;
  p.cp = c, p.method = method, p.kv_replicate = m.num_key_value_heads % c != 0;
  run_shape shape;
  shape.padded_length = length, shape.micro_rows = 1, shape.element_bytes = element_bytes, shape.training = training;
  num sum = 0;
  for_each_collective(m, p, shape, 0, balanced_routing{m, p, shape}, [&](const ledger_entry& e) {
    if (e.axes.has(axis::cp_ulysses) || e.axes.has(axis::cp_ring)) sum += wire_bytes(e);
  });
  return sum;
}
constexpr num closed_form(const model_spec& m, cp_method method, num c, bool training) {
  const num H = m.num_attention_heads, K = m.num_key_value_heads, k = K < c ? 1 : K / c;
  const num heads_sent = 2 * length / c * m.head_dim * element_bytes;  // of keys and of values, one head
  if (method == cp_method::ulysses) return (training ? 2 : 1) * heads_sent * (c - 1) * (H / c + k);
  return heads_sent * K * (training ? 3 * (c - 1) + (method == cp_method::ring ? 1 : 0) : c - 1);
}

int main() {
  for (const char* name : {"qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-coder-480b-a35b"}) {
    const model_spec& m = models::find(name)->spec;
    int crossing[2] = {0, 0};  // from which cp on Ulysses sends least: forward, in training
    std::printf("%s, a row of %lld tokens, MiB per layer and rank\n", name, static_cast<long long>(length));
    std::printf("  cp  forward: ulysses    ring  gather  training: ulysses    ring  gather");
    for (int c = 2; c <= 32 && m.num_attention_heads % c == 0; c *= 2) {
      std::printf("\n  %2d  ", c);
      for (const bool training : {false, true}) {
        std::printf(training ? "%10s" : "%8s", "");
        num bytes[3], *next = bytes;
        for (const cp_method method : {cp_method::ulysses, cp_method::ring, cp_method::all_gather}) {
          *next = counted(m, method, c, training);
          if (*next != closed_form(m, method, c, training)) return EXIT_FAILURE;
          std::printf("%8.0f", static_cast<double>(*next++) / (1 << 20));
        }
        if (crossing[training] == 0 && bytes[0] < bytes[1] && bytes[0] < bytes[2]) crossing[training] = c;
      }
    }
    std::printf("\n  Ulysses sends least from cp %d on, in training from %d\n", crossing[0], crossing[1]);
  }
}
//> qwen3-30b-a3b, a row of 65536 tokens, MiB per layer and rank
//>   cp  forward: ulysses    ring  gather  training: ulysses    ring  gather
//>    2               288      64      64               576     256     192
//>    4               216      96      96               432     320     288
//>    8               140     112     112               280     352     336
//>   16                90     120     120               180     368     360
//>   32                62     124     124               124     376     372
//>   Ulysses sends least from cp 16 on, in training from 8
//> qwen3-235b-a22b, a row of 65536 tokens, MiB per layer and rank
//>   cp  forward: ulysses    ring  gather  training: ulysses    ring  gather
//>    2               544      64      64              1088     256     192
//>    4               408      96      96               816     320     288
//>    8               252     112     112               504     352     336
//>   16               150     120     120               300     368     360
//>   32                93     124     124               186     376     372
//>   Ulysses sends least from cp 32 on, in training from 16
//> qwen3-coder-480b-a35b, a row of 65536 tokens, MiB per layer and rank
//>   cp  forward: ulysses    ring  gather  training: ulysses    ring  gather
//>    2               832     128     128              1664     512     384
//>    4               624     192     192              1248     640     576
//>    8               364     224     224               728     704     672
//>   16               210     240     240               420     736     720
//>   32               124     248     248               248     752     744
//>   Ulysses sends least from cp 16 on, in training from 16
