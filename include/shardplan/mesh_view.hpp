// SPDX-License-Identifier: Apache-2.0
// The type face of a mesh: views, whose axes, degrees and strides are part of their type. They are made of the meshes
// of mesh.hpp, under the same names: dense_mesh(spec) is a value, dense_mesh<Plan>() a view. A mesh that cannot be does
// not compile. mesh_algebra.hpp makes one view from another.
#ifndef SHARDPLAN_MESH_VIEW_HPP
#define SHARDPLAN_MESH_VIEW_HPP

#include <concepts>  // same_as
#include <shardplan/facts.hpp>
#include <shardplan/mesh.hpp>
#include <shardplan/plan_parse.hpp>
#include <shardplan/policies.hpp>
#include <utility>  // index_sequence

namespace shardplan {

namespace error {
struct degrees_of_a_mesh_are_in_range {
  SHARDPLAN_SENTENCE("every degree of a mesh must be at least 1, and their product at most 2147483647");
};
struct a_view_has_the_ranks_of_its_root {
  SHARDPLAN_SENTENCE("the degrees of a view must multiply to the number of ranks of its root");
};
struct an_axis_stands_once {
  SHARDPLAN_SENTENCE("an axis must stand in a mesh only once");
};
struct an_axis_is_of_the_view {
  SHARDPLAN_SENTENCE("an axis that is asked for must be one of the view");
};
}  // namespace error

namespace fact {
template <axis>
struct axis_named;
template <num>
struct ranks_of_view;
template <num>
struct ranks_of_root;
}  // namespace fact

/// An axis and its degree: of a root, or a part of an axis that is split.
template <axis Name, num Degree>
struct axis_of final {
  static constexpr axis name = Name;
  static constexpr num degree = Degree;
};

template <class A>
concept MeshAxis = requires {
  axis_of<A::name, A::degree>{};
};

/// An axis of a view: neighbours on it are `Stride` ranks apart.
template <axis Name, num Degree, num Stride>
struct view_axis final {
  static constexpr axis name = Name;
  static constexpr num degree = Degree, stride = Stride;
};

namespace detail {

/// A base class that is an error when `Broken`. The index tells bases with the same facts apart.
template <std::size_t, bool Broken, class Error, class... Facts>
struct fault {};
template <std::size_t Index, class Error, class... Facts>
struct fault<Index, true, Error, Facts...> : Error::template broken_with<Facts...> {};

template <std::size_t Size>
constexpr bool named_before(const axis (&names)[Size], std::size_t index) {
  for (std::size_t i = 0; i < index; ++i)
    if (names[i] == names[index]) return true;
  return false;
}

template <axis... Names>
inline constexpr axis_set set_of = (axis_set{} | ... | axis_set(Names));

template <class... Axes>
constexpr mesh mesh_made_of() {
  mesh m;
  (m.axes.push_back({Axes::name, Axes::degree}), ...);
  return m;
}

constexpr bool degrees_in_range(const mesh& m) {
  num product = 1;
  for (const mesh_axis& a : m.axes) {
    product = a.degree < 1 ? -1 : checked_product(product, a.degree);
    if (product < 1 || product > max_degree) return false;
  }
  return true;
}

template <class Index, class... Axes>
struct root_faults;
template <std::size_t... Index, class... Axes>
struct root_faults<std::index_sequence<Index...>, Axes...>
    : fault<0, !degrees_in_range(mesh_made_of<Axes...>()), error::degrees_of_a_mesh_are_in_range, Axes...>,
      fault<Index, named_before({Axes::name...}, Index), error::an_axis_stands_once, fact::axis_named<Axes::name>,
            Axes...>... {
  // A faulty root is a mesh without axes: its error stays the only one.
  static constexpr bool sound =
      degrees_in_range(mesh_made_of<Axes...>()) && !(named_before({Axes::name...}, Index) || ... || false);
  static constexpr mesh spec = sound ? mesh_made_of<Axes...>() : mesh{};
};

/// Axes with strides: what a view is, as a value.
struct placed_axis {
  axis name{};
  rank_group::step step{};
};
using placed_axes = fixed_vector<placed_axis, num_axes>;

/// The axes of a mesh within an axis of this stride; 1: within the world.
constexpr placed_axes placed(const mesh& m, num stride = 1) {
  placed_axes out;
  for (const mesh_axis& a : m.axes) out.push_back({a.name, {a.degree, stride * m.stride(a.name)}});
  return out;
}

constexpr fixed_vector<num, num_axes> coordinates(const placed_axes& axes, num rank) {
  fixed_vector<num, num_axes> out;
  for (const placed_axis& a : axes) out.push_back(place_on(a.step.degree, a.step.stride, rank));
  return out;
}
constexpr rank_group group(const placed_axes& axes, num rank) {
  rank_group g;
  g.first = rank;
  for (const placed_axis& a : axes) g.widen(rank, a.step);
  return g;
}

template <class View, axis Name>
struct axis_in;

}  // namespace detail

/// A root of one's own: struct cluster final : mesh_root<axis_of<axis::pp, 2>, axis_of<axis::tp, 8>> {}; slowest axis
/// first. Roots of different names are different ranks, even with the same axes.
template <MeshAxis... Axes>
struct mesh_root : private detail::root_faults<std::index_sequence_for<Axes...>, Axes...> {
  static constexpr mesh spec = detail::root_faults<std::index_sequence_for<Axes...>, Axes...>::spec;
};

template <class R>
concept MeshRoot = requires {
  { R::spec } -> std::same_as<const mesh&>;
};

/// A view, or a submesh of one: view_axis<...> each, slowest first. Made by the functions below, and empty: what it
/// says is data, which device code can use.
template <class Root, class... Axes>
struct mesh_view final {
  using root = Root;
  /// The same axes as a mesh by itself: the members of a group, numbered by their index.
  static constexpr mesh shape = detail::mesh_made_of<Axes...>();
  static constexpr num size = (num{1} * ... * Axes::degree);
  static constexpr axis_set names = detail::set_of<Axes::name...>;
  static constexpr detail::placed_axes axes{{{Axes::name, {Axes::degree, Axes::stride}}...}, sizeof...(Axes)};
  template <axis Name>
  static constexpr num degree = detail::axis_in<mesh_view, Name>::step.degree;
  template <axis Name>
  static constexpr num stride = detail::axis_in<mesh_view, Name>::step.stride;

  friend constexpr bool operator==(mesh_view, mesh_view) { return true; }
};

namespace detail {

template <class V>
inline constexpr bool is_view = false;
template <class Root, class... Axes>
inline constexpr bool is_view<mesh_view<Root, Axes...>> = true;

}  // namespace detail

template <class V>
concept MeshView = detail::is_view<V>;

namespace detail {

/// Faults of axes that are asked of a view: one that it has not, or one twice.
template <class View, class Index, axis... Asked>
struct asked_faults;
template <class View, std::size_t... Index, axis... Asked>
struct asked_faults<View, std::index_sequence<Index...>, Asked...>
    : fault<Index, !View::names.has(Asked), error::an_axis_is_of_the_view, fact::axis_named<Asked>, View>...,
      fault<Index, named_before({Asked...}, Index), error::an_axis_stands_once, fact::axis_named<Asked>, View>... {
  static constexpr bool sound = ((View::names.has(Asked) && !named_before({Asked...}, Index)) && ... && true);
};
template <class View, axis... Asked>
using asked_axes = asked_faults<View, std::make_index_sequence<sizeof...(Asked)>, Asked...>;

constexpr std::size_t find(const placed_axes& axes, axis name) {
  std::size_t i = 0;
  while (i < axes.size() && axes[i].name != name) ++i;
  return i;
}

template <class View, axis Name>
struct axis_in : asked_axes<View, Name> {
  static constexpr rank_group::step step =
      View::names.has(Name) ? View::axes[find(View::axes, Name)].step : rank_group::step{};
};

/// The type of the view whose axes are `Source::axes`.
template <class Root, class Source, class Index = std::make_index_sequence<Source::axes.size()>>
struct view_of;
template <class Root, class Source, std::size_t... Index>
struct view_of<Root, Source, std::index_sequence<Index...>> {
  using type = mesh_view<
      Root, view_axis<Source::axes[Index].name, Source::axes[Index].step.degree, Source::axes[Index].step.stride>...>;
};
template <class Root, class Source>
using view_of_t = typename view_of<Root, Source>::type;

template <class Plan>
constexpr bool degrees_in_range() {
  const num world = world_size(Plan::spec), expert = checked_product(Plan::spec.ep, Plan::spec.etp);
  return world >= 1 && world <= max_degree && expert >= 1 && expert <= max_degree;
}

/// A plan's ranks, factorised as `Mesh::of()` says.
template <class Plan, class Mesh, bool Sound = degrees_in_range<Plan>()>
struct plan_view;
template <class Plan, class Mesh>
struct plan_view<Plan, Mesh, true>
    : fault<0, Mesh::of().size() != world_size(Plan::spec), error::a_view_has_the_ranks_of_its_root,
            fact::ranks_of_view<Mesh::of().size()>, fact::ranks_of_root<world_size(Plan::spec)>, Plan> {
  static constexpr placed_axes axes = placed(Mesh::of());
};
template <class Plan, class Mesh>
struct plan_view<Plan, Mesh, false>
    : error::degrees_of_a_mesh_are_in_range::broken_with<
          axis_of<axis::pp, Plan::spec.pp>, axis_of<axis::dp_replicate, Plan::spec.dp_replicate>,
          axis_of<axis::fsdp, Plan::spec.fsdp>, axis_of<axis::cp, Plan::spec.cp>, axis_of<axis::tp, Plan::spec.tp>,
          axis_of<axis::ep, Plan::spec.ep>, axis_of<axis::etp, Plan::spec.etp>, Plan> {
  static constexpr placed_axes axes{};
};

template <class Plan>
struct root_of {
  static constexpr mesh of() { return root_mesh(Plan::spec); }
};
template <class Plan>
struct dense_of {
  static constexpr mesh of() { return dense_mesh(Plan::spec); }
};
template <class Plan>
struct expert_of {
  static constexpr mesh of() { return expert_mesh(Plan::spec); }
};
template <class Plan, class Model>
struct attention_of {
  static constexpr mesh of() {
    const bool divides = ulysses_degree(Plan::spec) >= 1 && Model::spec.num_key_value_heads >= 1;
    return divides ? attention_mesh(Plan::spec, Model::spec) : mesh{};
  }
};

template <class Root>
struct root_view : plan_view<Root, root_of<Root>> {};
template <MeshRoot Root>
struct root_view<Root> {
  static constexpr placed_axes axes = placed(Root::spec);
};

}  // namespace detail

// ---- the views of a plan, and of a root of one's own
// post: the axes of NAME_mesh<Plan>() are those of NAME_mesh(Plan::spec), and group(view, rank) is select() of them all

template <class Root>
requires(PlanType<Root> || MeshRoot<Root>) constexpr auto root_mesh() {
  return detail::view_of_t<Root, detail::root_view<Root>>{};
}
template <PlanType Plan>
constexpr auto dense_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::dense_of<Plan>>>{};
}
template <PlanType Plan>
constexpr auto expert_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::expert_of<Plan>>>{};
}
template <PlanType Plan, ModelType Model>
constexpr auto attention_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::attention_of<Plan, Model>>>{};
}

// ---- where a rank stands

/// Position of `rank` on one axis of the view.
template <axis Name, MeshView View>
constexpr num coordinate(View, num rank) {
  return place_on(View::template degree<Name>, View::template stride<Name>, rank);
}

/// Positions of `rank` on all axes, in the order of the view.
/// post: coordinates(view, rank)[i] == coordinate<name of axis i>(view, rank)
template <MeshView View>
constexpr fixed_vector<num, num_axes> coordinates(View, num rank) {
  return detail::coordinates(View::axes, rank);
}

/// The ranks that differ from `rank` only on axes of the view, in row-major order of these.
/// post: group(view, rank).member(group(view, rank).index) == rank
/// post: coordinate(view.shape, group(view, rank).index, a) == coordinate<a>(view, rank)
template <MeshView View>
constexpr rank_group group(View, num rank) {
  return detail::group(View::axes, rank);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_VIEW_HPP
