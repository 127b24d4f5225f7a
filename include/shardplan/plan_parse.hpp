// SPDX-License-Identifier: Apache-2.0
// Reads the text of a plan: "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp". Entries in any order, an absent axis has degree
// 1, at most one degree is `*` and follows from the world. An entry whose name is a pattern gives modules another
// style: "tp=2,lm_head=replicated,layers.3.self_attn=replicated". What makes a plan illegal is no matter of its text.
#ifndef SHARDPLAN_PLAN_PARSE_HPP
#define SHARDPLAN_PLAN_PARSE_HPP

#include <shardplan/plan_words.hpp>

namespace shardplan {

namespace detail {

class plan_parser {
 public:
  constexpr plan_parser(text_view text, num world) : text_(text), world_(world) {}

  constexpr parsed_plan parse() {
    for (std::size_t i = 0; i < text_.size(); ++i)
      if (text_[i] == ' ' || (text_[i] >= '\t' && text_[i] <= '\r'))
        return fail(plan_problem::space, i, "there are no spaces in a plan"), out_;
    for (std::size_t begin = 0; has_entry(begin); begin = entry_end(begin) + 1) module_entry(begin, entry_end(begin));
    for (std::size_t begin = 0; has_entry(begin) && out_.ok(); begin = entry_end(begin) + 1) {
      const std::size_t end = entry_end(begin);
      if (begin == end)
        fail(plan_problem::empty_entry, end < text_.size() ? end : end - 1, "a comma without an entry");
      else if (!names_modules(begin, end))
        entry(begin, end);
    }
    if (out_.ok()) infer();
    return out_;
  }

 private:
  using word = text_view;
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  enum option_group : unsigned { schedule = 1, stages = 2, method = 4, layout = 8, single = 16 };

  constexpr std::size_t find(char c, std::size_t begin, std::size_t end) const {
    while (begin < end && text_[begin] != c) ++begin;
    return begin;
  }
  constexpr word part(std::size_t begin, std::size_t end) const { return text_.substr(begin, end - begin); }
  /// What the user wrote, short and printable.
  constexpr fixed_text<48> quoted(std::size_t begin, std::size_t end) const {
    fixed_text<48> out;
    out.add("'");
    for (std::size_t i = begin; i < end && i < begin + 40; ++i)
      out.push_back(text_[i] >= ' ' && text_[i] <= '~' ? text_[i] : '?');
    return out.add(end > begin + 40 ? "...'" : "'");
  }
  static constexpr fixed_text<20> decimal(num value) { return fixed_text<20>{}.add(value); }
  constexpr void fail(plan_problem problem, std::size_t position, word a, word b = {}, word c = {}, word d = {},
                      word e = {}, word f = {}) {
    out_.problem = problem;
    out_.position = position;
    out_.message.add(a).add(b).add(c).add(d).add(e).add(f);
  }

  /// A whole number in [least, max_degree] that fills [begin, end); false after saying what is wrong.
  constexpr bool whole(word what, std::size_t begin, std::size_t end, num least, num& value) {
    num n = 0;  // stays where it is above max_degree: too large is too large
    std::size_t stop = begin;
    for (; stop < end && text_[stop] >= '0' && text_[stop] <= '9'; ++stop)
      if (n <= max_degree) n = n * 10 + (text_[stop] - '0');
    if (begin == end)
      fail(plan_problem::missing_degree, begin, what, " lacks its number");
    else if (stop != end)
      fail(plan_problem::not_a_number, stop, what, " must be a decimal number, not ", quoted(begin, end).view());
    else if (n < least || n > max_degree)
      fail(plan_problem::out_of_range, begin, what, " must be from ", decimal(least).view(), " to 2147483647, not ",
           quoted(begin, end).view());
    else
      value = n;
    return out_.ok();
  }

  // No loop that takes a lambda: clang 14 cannot evaluate it before the end of the file.
  constexpr bool has_entry(std::size_t begin) const { return !text_.empty() && begin <= text_.size(); }
  constexpr std::size_t entry_end(std::size_t begin) const { return find(',', begin, text_.size()); }

  /// Neither axes nor flags have dots in their names, nor letters as their degrees.
  constexpr bool names_modules(std::size_t begin, std::size_t end) const {
    const std::size_t equals = find('=', begin, end);
    const word name = part(begin, equals);
    if (find('.', begin, equals) != equals || name == "lm_head" || name == "*") return true;
    for (const plan_flag& flag : plan_flags)
      if (flag.name == name) return false;
    for (const plan_axis& a : plan_axes)
      if (name_of(a.name) == name) return false;
    return equals + 1 < end && text_[equals + 1] >= 'a' && text_[equals + 1] <= 'z';
  }
  /// Every unknown pattern and style is told, not the first alone.
  constexpr void module_entry(std::size_t begin, std::size_t end) {
    if (!names_modules(begin, end)) return;
    const std::size_t equals = find('=', begin, end), value = equals < end ? equals + 1 : end;
    const auto tell = [&](plan_problem problem, std::size_t at, word a, word b, word c = {}) {
      if (out_.ok())
        out_.problem = problem, out_.position = at;
      else
        out_.message.add("; ");
      out_.message.add(a).add(b).add(c);
    };
    const auto pattern = quoted(begin, equals), style = quoted(value, end);
    switch (merge(out_.plan.modules, part(begin, equals), part(value, end))) {
      case override_problem::unknown_pattern:
        return tell(plan_problem::unknown_module, begin, pattern.view(),
                    find('.', begin, equals) != equals ? " names no module of a model"
                                                       : " is neither an axis nor a flag nor a module of a model");
      case override_problem::unknown_style:
        return tell(plan_problem::unknown_style, value, style.view(), " is not a style of modules: ", known_styles);
      case override_problem::style_does_not_fit:
        return tell(plan_problem::unknown_style, value, style.view(), " is no style for all modules of ",
                    pattern.view());
      case override_problem::none:
        break;
    }
    if (out_.plan.modules.full() && out_.problem != plan_problem::too_many_overrides)
      tell(plan_problem::too_many_overrides, begin, "a plan can hold at most 24 module overrides", "");
  }

  constexpr void entry(std::size_t begin, std::size_t end) {
    std::size_t stop = begin;  // of the name
    while (stop < end && text_[stop] != '=' && text_[stop] != '/') ++stop;
    const word name = part(begin, stop);
    for (const plan_flag& flag : plan_flags) {
      if (flag.name != name) continue;
      if (stop != end)
        fail(plan_problem::flag_with_value, stop, name, " is a flag and takes no value");
      else if (out_.plan.*flag.given)
        fail(plan_problem::duplicate_axis, begin, name, " is given twice");
      out_.plan.*flag.given = true;
      return;
    }
    for (std::size_t i = 0; i < num_plan_axes; ++i) {
      if (name_of(plan_axes[i].name) != name) continue;
      if (where_[i] != npos)
        fail(plan_problem::duplicate_axis, begin, name, " is given twice");
      else if (stop == end || text_[stop] == '/')
        fail(plan_problem::missing_degree, stop, name, " lacks its degree: write ", name, "=N");
      else
        axis_entry(i, stop + 1, end);
      return;
    }
    fail(plan_problem::unknown_axis, begin, quoted(begin, stop).view(), " is neither an axis (", known_axes,
         ") nor a flag (", known_flags, ")");
  }

  constexpr void axis_entry(std::size_t index, std::size_t begin, std::size_t end) {
    const plan_axis a = plan_axes[index];
    const word name = name_of(a.name);
    std::size_t slash = find('/', begin, end);
    where_[index] = begin;
    if (part(begin, slash) != "*") {
      if (!whole(name, begin, slash, 1, out_.plan.*a.degree)) return;
    } else if (index >= num_dense_axes) {
      return fail(plan_problem::star_cannot_be_inferred, begin, name,
                  "=* cannot be inferred from the world: ep and etp add no ranks");
    } else if (star_ != npos) {
      return fail(plan_problem::second_star, begin, name, "=* is the second *: only one degree can be inferred, and ",
                  name_of(plan_axes[star_].name), "=* was given");
    } else {
      star_ = index;
    }
    for (unsigned given = 0; slash < end;) {
      const std::size_t from = slash + 1, to = find('/', from, end);
      const unsigned group = from == to ? 0 : option(a.name, from, to);
      if (!out_.ok()) return;
      const word known = known_options(a.name);
      if (group == 0)
        return fail(plan_problem::unknown_option, from == to ? slash : from, quoted(from, to).view(),
                    " is not an option of ", name, known.empty() ? ": it has none" : ": ", known);
      if (given & group)
        return fail(plan_problem::duplicate_option, from, name, ": ", quoted(from, to).view(),
                    " chooses again what was chosen before");
      given |= group;
      slash = to;
    }
  }

  /// Sets `value` to the enumerator of that name, up to `last`; false when there is none.
  template <class Enum>
  constexpr bool choose(word name, Enum& value, Enum last) {
    for (unsigned i = 0; i <= static_cast<unsigned>(last); ++i)
      if (name_of(static_cast<Enum>(i)) == name) return value = static_cast<Enum>(i), true;
    return false;
  }

  /// Sets what the option says; the group of options that exclude each other, 0 for an unknown one.
  constexpr unsigned option(axis a, std::size_t begin, std::size_t end) {
    const word given = part(begin, end);
    plan_spec& p = out_.plan;
    switch (a) {
      case axis::pp:
        if (given.substr(0, 7) == "layers:") return stage_list(begin + 7, end);
        if (given.substr(0, 11) == name_of(schedule_kind::interleaved)) {
          p.schedule = schedule_kind::interleaved;
          return whole("pp: N of interleavedN", begin + 11, end, 2, p.virtual_stages), schedule;
        }
        return choose(given, p.schedule, schedule_kind::gpipe) ? schedule : 0u;
      case axis::fsdp:
        return choose(given, p.zero, zero_stage::zero2) ? single : 0u;
      case axis::cp: {
        const std::size_t x = find('x', begin, end);
        if (given.substr(0, 7) == "ulysses" && part(x, end).substr(0, 5) == "xring") {
          p.method = cp_method::ulysses_ring;
          if (whole("cp: U of ulyssesUxringR", begin + 7, x, 1, p.method_ulysses))
            whole("cp: R of ulyssesUxringR", x + 5, end, 1, p.method_ring);
          return method;
        }
        if (choose(given, p.method, cp_method::all_gather)) return method;
        return given != name_of(layout_kind::full) && choose(given, p.layout, layout_kind::zigzag_documents) ? layout
                                                                                                             : 0u;
      }
      case axis::tp:
        return given == "sp" ? (p.sequence_parallel = true, single) : 0u;
      case axis::ep:
        return choose(given, p.dispatch, dispatch_kind::all_gather) ? single : 0u;
      default:
        return 0;
    }
  }
  constexpr unsigned stage_list(std::size_t begin, std::size_t end) {
    for (std::size_t from = begin; from <= end;) {
      const std::size_t to = find('+', from, end);
      num layers = 0;
      if (!whole("pp: a number of layers:A+B+...", from, to, 0, layers)) break;
      if (!out_.plan.stages.push_back(layers)) {
        fail(plan_problem::too_many_stages, from, "pp: layers:A+B+... lists more than ",
             decimal(static_cast<num>(stage_layer_counts::capacity())).view(), " stages");
        break;
      }
      from = to + 1;
    }
    return stages;
  }

  /// Degrees multiply to a world in range; the one that is `*` makes up the rest of it.
  constexpr void infer() {
    num product = 1;
    for (std::size_t i = 0; i < num_dense_axes; ++i) {
      const num degree = out_.plan.*plan_axes[i].degree;
      if ((product *= degree) > max_degree)
        return fail(plan_problem::world_out_of_range, where_[i], "with ", name_of(plan_axes[i].name), "=",
                    decimal(degree).view(), " the degrees multiply to more than 2147483647 ranks");
    }
    if (star_ == npos) return;
    const word name = name_of(plan_axes[star_].name);
    const std::size_t at = where_[star_];
    if (world_ <= 0)
      fail(plan_problem::star_without_world, at, name, "=* needs the number of ranks of the world");
    else if (world_ > max_degree)
      fail(plan_problem::world_out_of_range, at, name, "=*: a world of ", decimal(world_).view(),
           " ranks is above 2147483647");
    else if (world_ % product != 0)
      fail(plan_problem::star_is_not_whole, at, name, "=* is not whole: a world of ", decimal(world_).view(),
           " ranks over the other degrees' ", decimal(product).view());
    else
      out_.plan.*plan_axes[star_].degree = world_ / product;
  }

  text_view text_;
  num world_;
  parsed_plan out_{};
  std::size_t where_[num_plan_axes] = {npos, npos, npos, npos, npos, npos, npos};  // of each degree given
  std::size_t star_ = npos;
};

}  // namespace detail

/// Reads a plan. `world` is the number of ranks, 0 when not known; only a degree `*` asks it.
constexpr parsed_plan parse_plan(text_view text, num world = 0) { return detail::plan_parser(text, world).parse(); }

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_PARSE_HPP
