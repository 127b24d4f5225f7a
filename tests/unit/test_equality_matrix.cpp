// SPDX-License-Identifier: Apache-2.0
// Context parallelism in every combination: method x layout x batch format x degree x what else is parallel. Outputs
// and gradients of every legal cell are the baseline's.
#include <doctest/doctest.h>

#include "tests/unit/equality_helpers.hpp"

namespace shardplan::runtime {
namespace {

struct batch_format {
  const char* name;
  batch_rows rows;
};

/// Two or more rows of unequal content, none of which a degree of 2 or 4 divides.
std::vector<batch_format> batch_formats(const model_spec& m) {
  batch_rows padded = make_rows(m, 4, 11);
  hide(padded, 0, 8, 11);  // right
  hide(padded, 1, 0, 3);   // left
  batch_rows shifted = make_rows(m, 4, 9);
  shifted.shift_labels = shifted.labels;  // the last token predicts too
  shifted.labels.clear();
  batch_rows short_rows = make_rows(m, 4, 1);  // most ranks hold padding alone
  short_rows.shift_labels = short_rows.labels;
  short_rows.labels.clear();
  short_rows.shift_labels[0] = short_rows.input_ids[0];  // at least one target
  return {{"plain", make_rows(m, 4, 11)},
          {"packed", make_packed(m, 4, {5, 1, 7, 2})},
          {"padded", padded},
          {"embeds", with_embeds(make_rows(m, 4, 7), m)},
          {"shift_labels", shifted},
          {"one token", short_rows}};
}

}  // namespace

TEST_CASE("every method, layout, batch format and degree of context parallelism, beside every other axis") {
  num cells = 0, legal_cells = 0;
  double worst = 0;
  for (const char* fixture : {"sparse_step", "sliding"}) {
    const model_spec& m = model_of(fixture);
    for (const batch_format& format : batch_formats(m)) {
      equality held(fixture, format.rows);
      for (const char* method : {"ulysses", "ring", "all_gather", "ulysses2xring2"})
        for (const char* layout : {"contiguous", "zigzag", "zigzag_documents"})
          for (const char* cp : {"2", "4"})
            for (const char* beside : {"", ",tp=2", ",tp=2/sp", ",pp=2", ",ep=2", ",fsdp=2", ",dp_replicate=2"}) {
              const bool hybrid = std::string_view(method) == "ulysses2xring2";
              if (hybrid && std::string_view(cp) == "2") continue;  // a product of 4
              ++cells;
              held.expect_if_legal(std::string("cp=") + cp + "/" + method + "/" + layout + beside);
            }
      legal_cells += held.plans();
      worst = std::max(worst, held.worst());
    }
  }
  MESSAGE(cells, " cells, ", legal_cells, " legal and executed, largest error ", worst);
  CHECK(legal_cells > 1000);
}

}  // namespace shardplan::runtime
