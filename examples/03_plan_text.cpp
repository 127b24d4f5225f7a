// SPDX-License-Identifier: Apache-2.0
// Plans as text: a literal that is read by the compiler, a string that is read when the program runs.
#include <cstdio>
#include <shardplan/shardplan.hpp>
#include <string_view>

using namespace shardplan;
using namespace shardplan::literals;

// A literal is a plan_spec. One that cannot be read does not compile, and the error names the character.
constexpr plan_spec wanted = "cp=4/ring/zigzag,tp=2/sp"_plan;
static_assert(wanted.cp == 4 && wanted.method == cp_method::ring && world_size(wanted) == 8);
using as_type = plan<tensor_parallel<2, sequence_parallel>, context_parallel<4, ring, zigzag>>;
static_assert(as_type::spec == wanted);

void tell(std::string_view text, num world) {
  std::printf("%.*s\n", static_cast<int>(text.size()), text.data());
  const parsed_plan parsed = parse_plan(text, world);
  if (!parsed.ok()) {
    std::printf("  cannot be read at %zu: %s\n", parsed.position, parsed.message.c_str());
    return;
  }
  std::printf("  in full: %s\n", print_plan(parsed.plan).c_str());
  const question q{.model = models::qwen3_235b_a22b, .plan = parsed.plan, .world = world};
  if (legal(q)) {
    std::printf("  legal\n");
    return;
  }
  check(q, [](const violation& v) { std::printf("  %.*s\n", static_cast<int>(v.sentence.size()), v.sentence.data()); });
  const nearest_plan nearest = nearest_legal_plan(q);
  if (nearest.found)
    std::printf("  nearest: %s, degrees changed: %lld\n", print_plan(nearest.plan).c_str(),
                static_cast<long long>(nearest.changed_degrees));
}

int main() {
  tell("pp=2,fsdp=*,tp=4/sp,ep=8", 64);
  tell("fsdp=2,cp=12/ring,tp=1,ep=16", 24);
  tell("tp=2,cp=two", 4);
}
//> pp=2,fsdp=*,tp=4/sp,ep=8
//>   in full: pp=2/1f1b,fsdp=8/zero3,tp=4/sp,ep=8/dispatch
//>   legal
//> fsdp=2,cp=12/ring,tp=1,ep=16
//>   in full: fsdp=2/zero3,cp=12/ring/contiguous,ep=16/dispatch
//>   ep * etp must divide fsdp * cp * tp
//>   nearest: fsdp=2/zero3,cp=12/ring/contiguous, degrees changed: 1
//> tp=2,cp=two
//>   cannot be read at 8: cp must be a decimal number, not 'two'
