// SPDX-License-Identifier: Apache-2.0
// What the library says is printed, compared, ordered and kept like any other text.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <shardplan/shardplan.hpp>
#include <sstream>
#include <string>
#include <string_view>

namespace {

using namespace shardplan;
using namespace shardplan::literals;

constexpr text_view tp = name_of(axis::tp);
static_assert(tp == "tp" && "tp" == tp && tp == std::string_view("tp") && std::string_view("tp") == tp);
static_assert(name_of(axis::cp) < tp && !(tp < tp) && text_view("t") < tp && text_view() < tp);
static_assert(tp < std::string_view("tq") && std::string_view("to") < tp);

TEST_CASE("a text view meets the standard's types") {
  std::string text(tp);
  text = tp;
  text += tp;
  CHECK(text == "tptp");
  CHECK(tp < text);
  CHECK_FALSE(text < tp);
  CHECK(text_view("a\x7f") < text_view("a\x80"));  // bytes are ordered without a sign, as std::string_view orders them
  std::map<std::string_view, int> by_view{{tp, 1}};
  CHECK(by_view.at(tp) == 1);
  const std::map<std::string, int, std::less<>> by_text{{std::string(tp), 2}};
  CHECK(by_text.find(tp)->second == 2);
  CHECK(std::set<text_view>{tp, name_of(axis::cp), tp}.size() == 2);
}

TEST_CASE("views, plans and fixes are printed") {
  std::ostringstream out;
  out << tp << ' ' << print_plan("cp=2,tp=2/sp"_plan) << ' ' << fix_text{"a fix"};
  CHECK(out.str() == "tp cp=2/ulysses/contiguous,tp=2/sp a fix");
}

}  // namespace
