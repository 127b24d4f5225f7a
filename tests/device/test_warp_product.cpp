// SPDX-License-Identifier: Apache-2.0
// Products of a warp: what lanes load for the instruction, which is played here as the PTX manual (mma.m16n8k16 with
// .bf16 operands) defines it, gives the sums that lanes of the host compute.
#include "runtime/device/cuda/warp_product.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;
using cuda::lane_sums, cuda::lane_words, cuda::word;

namespace {

/// The registers of all lanes. PTX numbers the elements a lane holds: two in each register, the lower one in its low
/// half; of the sums one in each.
struct registers {
  lane_words<4> a[32];
  lane_words<2> b[32];
  lane_sums c[32];
};

float element(word w, int i) { return cuda::widen(bf16{static_cast<std::uint16_t>(i % 2 == 0 ? w : w >> 16)}); }

/// c += a b, all lanes at once, by the manual's tables of rows and columns.
void play_instruction(registers& r) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane >> 2, in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const int row = (i < 2 || (i >= 4 && i < 6)) ? group : group + 8;
      const int col = i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      a[row][col] = element(r.a[lane].x[i / 2], i);
    }
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8;
      b[row][group] = element(r.b[lane].x[i / 2], i);
    }
    for (int i = 0; i < 4; ++i) c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = r.c[lane][i];
  }
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      for (int k = 0; k < 16; ++k) c[i][j] += a[i][k] * b[k][j];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) r.c[lane][i] = c[i < 2 ? lane >> 2 : (lane >> 2) + 8][lane % 4 * 2 + (i & 1)];
}

/// Lines of random values, as they lie in shared memory.
struct tile {
  num lines, stride;
  std::vector<bf16> values;
  std::vector<word> words;

  template <class Random>
  tile(Random& random, num n, num words_per_line)
      : lines(n), stride(words_per_line), values(random_values<bf16>(random, 2 * n * words_per_line)) {
    for (std::size_t i = 0; i < values.size(); i += 2) words.push_back(cuda::word_of(values[i], values[i + 1]));
  }
  cuda::word_lines view() const { return {words.data(), static_cast<int>(stride)}; }
  double at(num line, num i) const {
    return static_cast<double>(cuda::widen(values[static_cast<std::size_t>(2 * line * stride + i)]));
  }
};

/// But for the order of roundings, which compilers may fuse.
bool same(const lane_sums& x, const lane_sums& y) {
  for (int i = 0; i < 4; ++i)
    if (!(std::abs(x[i] - y[i]) < 1e-5f)) return false;
  return true;
}

}  // namespace

TEST_CASE("lanes load what the instruction multiplies to the sums of the host: lines are columns") {
  std::mt19937 random(51);
  const tile a(random, 16, 12), b(random, 8 * 3, 20);
  const auto start = random_values<float>(random, 32 * 3 * 4);
  float sums[32][3][4];
  std::memcpy(sums, start.data(), sizeof(sums));
  for (int lane = 0; lane < 32; ++lane) {
    cuda::add_products_of_lines(sums[lane], a.view(), b.view(), lane);
    for (int i = 0; i < 4; ++i)  // where the sum of a lane belongs
      for (int j = 0; j < 3; ++j) {
        const int row = cuda::warp_layout::c_row(lane, i), col = 8 * j + cuda::warp_layout::c_col(lane, i);
        double expected = static_cast<double>(start[static_cast<std::size_t>(lane * 12 + j * 4 + i)]);
        for (int k = 0; k < 16; ++k) expected += a.at(row, k) * b.at(col, k);
        CHECK(std::abs(static_cast<double>(sums[lane][j][i]) - expected) < 1e-5);
      }
  }
  for (int j = 0; j < 3; ++j) {
    registers r{};
    for (int lane = 0; lane < 32; ++lane) {
      r.a[lane] = cuda::words_of_rows(a.view(), lane);
      r.b[lane] = cuda::words_of_columns(b.view().from(8 * j, 0), lane);
      std::memcpy(r.c[lane], start.data() + lane * 12 + j * 4, sizeof(lane_sums));
    }
    play_instruction(r);
    for (int lane = 0; lane < 32; ++lane) CHECK(same(r.c[lane], sums[lane][j]));
  }
}

TEST_CASE("lanes load what the instruction multiplies to the sums of the host: lines are rows, two products at once") {
  std::mt19937 random(52);
  const tile a(random, 16, 12), b(random, 16, 24);
  const auto start = random_values<float>(random, 32 * 2 * 2 * 4);
  float sums[32][2][2][4];
  std::memcpy(sums, start.data(), sizeof(sums));
  for (int lane = 0; lane < 32; ++lane) {
    cuda::add_weighted_lines(sums[lane], a.view(), b.view(), 16, lane);
    for (int g = 0; g < 2; ++g)
      for (int p = 0; p < 2; ++p)
        for (int i = 0; i < 4; ++i) {
          const int row = cuda::warp_layout::c_row(lane, i), d = 32 * g + 2 * cuda::warp_layout::c_col(lane, i) + p;
          double expected = static_cast<double>(start[static_cast<std::size_t>(((lane * 2 + g) * 2 + p) * 4 + i)]);
          for (int k = 0; k < 16; ++k) expected += a.at(row, k) * b.at(k, d);
          CHECK(std::abs(static_cast<double>(sums[lane][g][p][i]) - expected) < 1e-5);
        }
  }
  for (int g = 0; g < 2; ++g)
    for (int p = 0; p < 2; ++p) {
      registers r{};
      for (int lane = 0; lane < 32; ++lane) {
        r.a[lane] = cuda::words_of_rows(a.view(), lane);
        r.b[lane] = cuda::words_of_lines(b.view().from(0, 16 * g), lane).of[p];
        std::memcpy(r.c[lane], start.data() + ((lane * 2 + g) * 2 + p) * 4, sizeof(lane_sums));
      }
      play_instruction(r);
      for (int lane = 0; lane < 32; ++lane) CHECK(same(r.c[lane], sums[lane][g][p]));
    }
}

TEST_CASE("every sum of a product belongs to one lane") {
  bool seen[16][8] = {};
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      bool& s = seen[cuda::warp_layout::c_row(lane, i)][cuda::warp_layout::c_col(lane, i)];
      CHECK_FALSE(s);
      s = true;
    }
}
