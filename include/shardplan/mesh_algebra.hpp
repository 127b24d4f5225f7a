// SPDX-License-Identifier: Apache-2.0
// The algebra of views: select, flatten, unflatten and compose make one view from another, group asks one. Views are
// composed only when they are of one root; an axis used twice, or one that the view has not, does not compile either.
//
//   struct mine final : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<4>> {};
//   constexpr auto dense = dense_mesh<mine>();                        // (pp, dp_replicate, fsdp, cp, tp), 8 ranks
//   constexpr auto shards = select<axis::fsdp_cp>(flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense));  // 4 ranks
//   constexpr auto both = compose(select<axis::tp>(dense), shards);   // (fsdp_cp, tp), 8 ranks
//   static_assert(shards.stride<axis::fsdp_cp> == 2 && group<axis::tp>(dense, 5).first == 4);
#ifndef SHARDPLAN_MESH_ALGEBRA_HPP
#define SHARDPLAN_MESH_ALGEBRA_HPP

#include <shardplan/mesh_view.hpp>
#include <utility>  // index_sequence

namespace shardplan {

namespace error {
struct views_share_a_root {
  SHARDPLAN_SENTENCE("views must share a root to be composed; these are of different ranks");
};
struct composed_axes_are_apart {
  SHARDPLAN_SENTENCE(
      "axes that are composed must be apart: the stride of one a multiple of stride * degree of the other");
};
struct flattened_axes_are_neighbours {
  SHARDPLAN_SENTENCE("axes that are flattened must be neighbours in the view, the slowest named first");
};
struct parts_multiply_to_the_whole {
  SHARDPLAN_SENTENCE("the degrees of the parts must multiply to the degree of the axis that is split");
};
}  // namespace error

namespace fact {
template <num>
struct degree_of_whole;
template <num>
struct product_of_parts;
}  // namespace fact

namespace detail {

/// Faults of axes that come in the place of others: a name that the rest of the view has. Told only of a view that has
/// those others.
template <class View, axis_set Gone, class Index, axis... New>
struct new_faults;
template <class View, axis_set Gone, std::size_t... Index, axis... New>
struct new_faults<View, Gone, std::index_sequence<Index...>, New...>
    : fault<Index,
            (View::names | Gone) == View::names &&
                ((View::names.has(New) && !Gone.has(New)) || named_before({New...}, Index)),
            error::an_axis_stands_once, fact::axis_named<New>, View>... {};

template <class View, axis... Kept>
struct selected : asked_axes<View, Kept...> {
  static constexpr placed_axes keep(axis_set kept) {
    placed_axes out;
    for (const placed_axis& a : View::axes)
      if (kept.has(a.name)) out.push_back(a);
    return out;
  }
  static constexpr placed_axes axes = keep(set_of<Kept...>);
};

/// Whether `parts` stand one after the other in `axes`, and no rank lies between.
template <std::size_t Size>
constexpr bool neighbours(const placed_axes& axes, const axis (&parts)[Size]) {
  const std::size_t begin = find(axes, parts[0]);
  for (std::size_t i = 0; i < Size; ++i) {
    if (begin + i >= axes.size() || axes[begin + i].name != parts[i]) return false;
    const rank_group::step step = axes[begin + i].step;
    if (i > 0 && axes[begin + i - 1].step.stride != step.stride * step.degree) return false;
  }
  return true;
}

// `axes` with those from `begin` to `end` replaced.
constexpr placed_axes replaced(const placed_axes& axes, std::size_t begin, std::size_t end, const placed_axes& by) {
  placed_axes out;
  for (std::size_t i = 0; i < begin; ++i) out.push_back(axes[i]);
  for (const placed_axis& a : by) out.push_back(a);
  for (std::size_t i = end; i < axes.size(); ++i) out.push_back(axes[i]);
  return out;
}

/// `whole` in the place of `parts`; all as it was when they are no neighbours.
template <std::size_t Size>
constexpr placed_axes merged(const placed_axes& axes, const axis (&parts)[Size], axis whole) {
  if (!neighbours(axes, parts)) return axes;
  const std::size_t begin = find(axes, parts[0]), end = begin + Size;
  rank_group::step step = axes[end - 1].step;
  for (std::size_t i = begin; i + 1 < end; ++i) step.degree *= axes[i].step.degree;
  return replaced(axes, begin, end, {{{whole, step}}, 1});
}

template <class View, axis Whole, axis... Parts>
struct flattened : asked_axes<View, Parts...>,
                   new_faults<View, set_of<Parts...>, std::index_sequence<0>, Whole>,
                   fault<0, asked_axes<View, Parts...>::sound && !neighbours(View::axes, {Parts...}),
                         error::flattened_axes_are_neighbours, fact::axis_named<Parts>..., View> {
  static constexpr placed_axes axes = merged(View::axes, {Parts...}, Whole);
};

template <class... Axes>
constexpr num product_of() {
  num product = 1;
  ((product = checked_product(product, Axes::degree)), ...);
  return product;
}

template <class View, axis Whole, class... Parts>
struct unflattened : axis_in<View, Whole>,
                     new_faults<View, axis_set(Whole), std::index_sequence_for<Parts...>, Parts::name...>,
                     fault<0, View::names.has(Whole) && product_of<Parts...>() != axis_in<View, Whole>::step.degree,
                           error::parts_multiply_to_the_whole, fact::axis_named<Whole>,
                           fact::degree_of_whole<axis_in<View, Whole>::step.degree>,
                           fact::product_of_parts<product_of<Parts...>()>, Parts...> {
  static constexpr placed_axes split() {
    if (!View::names.has(Whole) || product_of<Parts...>() < 1) return View::axes;
    const std::size_t at = find(View::axes, Whole);
    return replaced(View::axes, at, at + 1, placed(mesh_made_of<Parts...>(), View::axes[at].step.stride));
  }
  static constexpr placed_axes axes = split();
};

/// Whether each place on the one axis goes with each on the other, and the ranks know both: the slower axis steps over
/// whole turns of the faster one. An axis of degree 1 is apart from all.
constexpr bool apart(rank_group::step a, rank_group::step b) {
  return a.degree == 1 || b.degree == 1 || a.stride % (b.stride * b.degree) == 0 ||
         b.stride % (a.stride * a.degree) == 0;
}

template <class A, class... Others>
struct overlap_faults
    : fault<0, A::name != Others::name && !apart({A::degree, A::stride}, {Others::degree, Others::stride}),
            error::composed_axes_are_apart, A, Others>... {};

/// The slower axis comes first. The order of axes of degree 1 means nothing to ranks; it is made the same for every
/// order of composing.
constexpr bool comes_before(const placed_axis& a, const placed_axis& b) {
  if (a.step.stride != b.step.stride) return a.step.stride > b.step.stride;
  if (a.step.degree != b.step.degree) return a.step.degree > b.step.degree;
  return a.name < b.name;
}
constexpr placed_axes in_order(placed_axes axes) {
  for (std::size_t i = 1; i < axes.size(); ++i)
    for (std::size_t k = i; k > 0 && comes_before(axes[k], axes[k - 1]); --k) {
      const placed_axis faster = axes[k - 1];
      axes[k - 1] = axes[k];
      axes[k] = faster;
    }
  return axes;
}

template <class A, class B>
struct composed;
template <class Root, class... A, class... B>
struct composed<mesh_view<Root, A...>, mesh_view<Root, B...>>
    : fault<0, mesh_view<Root, B...>::names.has(A::name), error::an_axis_stands_once, fact::axis_named<A::name>,
            mesh_view<Root, A...>, mesh_view<Root, B...>>...,
      overlap_faults<A, B...>... {
  static constexpr placed_axes join() {
    placed_axes out = mesh_view<Root, A...>::axes;
    for (const placed_axis& b : mesh_view<Root, B...>::axes) out.push_back(b);
    return in_order(out);
  }
  static constexpr placed_axes axes = join();
};
template <class RootA, class RootB, class... A, class... B>
struct composed<mesh_view<RootA, A...>, mesh_view<RootB, B...>> : error::views_share_a_root::broken_with<RootA, RootB> {
  static constexpr placed_axes axes = mesh_view<RootA, A...>::axes;
};

}  // namespace detail

/// Some axes of a view: a submesh, of which there is one for every place on the other axes.
/// post: coordinate<a>(select<A...>(v), rank) == coordinate<a>(v, rank) for each a of A
/// post: group(select<A...>(v), rank) is the ranks that agree with `rank` on all other axes of v
template <axis... Kept, MeshView View>
constexpr auto select(View) {
  return detail::view_of_t<typename View::root, detail::selected<View, Kept...>>{};
}

/// One axis in the place of neighbours, named from the slowest on.
/// post: coordinate<Whole>(result, r) == (coordinate<First>(v, r) * v.degree<Second> + coordinate<Second>(v, r)) * ...
/// post: group(result, r) has the members of group(v, r), in the same order
template <axis Whole, axis... Parts, MeshView View>
requires(sizeof...(Parts) >= 1) constexpr auto flatten(View) {
  return detail::view_of_t<typename View::root, detail::flattened<View, Whole, Parts...>>{};
}

/// Neighbours in the place of one axis: unflatten<axis::cp, axis_of<axis::cp_ring, 2>, axis_of<axis::cp_ulysses, 4>>.
/// post: flatten<Whole, names of Parts...>(result) == v, as a type
template <axis Whole, MeshAxis... Parts, MeshView View>
requires(sizeof...(Parts) >= 1) constexpr auto unflatten(View) {
  return detail::view_of_t<typename View::root, detail::unflattened<View, Whole, Parts...>>{};
}

/// The axes of two views of one root, the slower ones first.
/// post: coordinate<a>(compose(v, w), r) is that of v or of w, whichever has the axis; size is v.size * w.size
/// post: compose(v, w) == compose(w, v), as a type
template <MeshView A, MeshView B>
constexpr auto compose(A, B) {
  return detail::view_of_t<typename A::root, detail::composed<A, B>>{};
}

/// The group of `rank` over some axes of a view.
/// post: group<A...>(v, rank) == group(select<A...>(v), rank)
template <axis First, axis... Rest, MeshView View>
constexpr rank_group group(View view, num rank) {
  return group(select<First, Rest...>(view), rank);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_ALGEBRA_HPP
