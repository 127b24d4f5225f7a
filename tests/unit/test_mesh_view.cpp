// SPDX-License-Identifier: Apache-2.0
// Views: the `// post:` lines of mesh_view.hpp and mesh_algebra.hpp, over every rank, and against the meshes of
// mesh.hpp for every degree tuple of small worlds. What must not compile is in tests/compile_fail.
#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <set>
#include <shardplan/mesh_algebra.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace shardplan;

// ---- against the value face

struct degrees {
  num pp = 1, dp_replicate = 1, fsdp = 1, cp = 1, tp = 1, ep = 1, etp = 1;
};

/// Calls f for every tuple of degrees of up to `most` ranks.
template <class F>
constexpr void for_each_tuple(num most, F&& f) {
  degrees d;
  for (d.pp = 1; d.pp <= most; ++d.pp)
    for (d.dp_replicate = 1; d.pp * d.dp_replicate <= most; ++d.dp_replicate)
      for (d.fsdp = 1; d.pp * d.dp_replicate * d.fsdp <= most; ++d.fsdp)
        for (d.cp = 1; d.pp * d.dp_replicate * d.fsdp * d.cp <= most; ++d.cp)
          for (d.tp = 1; d.pp * d.dp_replicate * d.fsdp * d.cp * d.tp <= most; ++d.tp)
            for (d.ep = 1; d.ep <= most; ++d.ep)
              for (d.etp = 1; d.etp <= most; ++d.etp)
                if (d.fsdp * d.cp * d.tp % (d.ep * d.etp) == 0) f(d);
}

constexpr num most_ranks = 4;
constexpr std::size_t num_tuples = [] {
  std::size_t n = 0;
  for_each_tuple(most_ranks, [&](const degrees&) { ++n; });
  return n;
}();
constexpr std::array<degrees, num_tuples> tuples = [] {
  std::array<degrees, num_tuples> out{};
  std::size_t n = 0;
  for_each_tuple(most_ranks, [&](const degrees& d) { out[n++] = d; });
  return out;
}();

template <std::size_t I>
using plan_at = plan<pipeline_parallel<tuples[I].pp>, replicated<tuples[I].dp_replicate>, fully_sharded<tuples[I].fsdp>,
                     context_parallel<tuples[I].cp>, tensor_parallel<tuples[I].tp>,
                     expert_parallel<tuples[I].ep, expert_tensor_parallel<tuples[I].etp>>>;

/// A view as data, so that the code that compares is not a template: there are many plans.
struct face {
  const detail::placed_axes* axes;
  const mesh* shape;
  num size;
  axis_set names;
  rank_group (*group_of)(num);
  fixed_vector<num, num_axes> (*coordinates_of)(num);
};
template <class View>
constexpr face face_of(View) {
  return {&View::axes,
          &View::shape,
          View::size,
          View::names,
          [](num rank) { return group(View{}, rank); },
          [](num rank) { return coordinates(View{}, rank); }};
}

/// A view must be the axes `kept` of the mesh `m`, for every rank.
void compare(const face& f, const mesh& m, axis_set kept) {
  std::size_t i = 0;
  num size = 1;
  for (const mesh_axis& a : m.axes) {
    if (!kept.has(a.name)) continue;
    REQUIRE(i < f.axes->size());
    CHECK((*f.axes)[i].name == a.name);
    CHECK((*f.axes)[i].step == rank_group::step{a.degree, m.stride(a.name)});
    CHECK(f.shape->axes[i] == a);
    size *= a.degree;
    ++i;
  }
  CHECK(f.axes->size() == i);
  CHECK(f.shape->axes.size() == i);
  CHECK(f.size == size);
  CHECK(f.names == kept);
  for (num rank = 0; rank < m.size(); ++rank) {
    CHECK(f.group_of(rank) == select(m, rank, kept));
    const auto at = f.coordinates_of(rank);
    REQUIRE(at.size() == i);
    for (std::size_t k = 0; k < i; ++k) CHECK(at[k] == coordinate(m, rank, (*f.axes)[k].name));
  }
}
void compare(const face& f, const mesh& m) {
  axis_set all;
  for (const mesh_axis& a : m.axes) all = all | a.name;
  compare(f, m, all);
}

struct faces {
  plan_spec spec;
  face root, dense, expert, replicas, inner, experts;
};
template <class Plan>
constexpr faces faces_of() {
  return {Plan::spec,
          face_of(root_mesh<Plan>()),
          face_of(dense_mesh<Plan>()),
          face_of(expert_mesh<Plan>()),
          face_of(select<axis::cp, axis::fsdp, axis::dp_replicate>(dense_mesh<Plan>())),
          face_of(select<axis::pp, axis::tp>(dense_mesh<Plan>())),
          face_of(select<axis::ep, axis::etp>(expert_mesh<Plan>()))};
}
template <std::size_t... I>
constexpr std::array<faces, sizeof...(I)> all_faces(std::index_sequence<I...>) {
  return {faces_of<plan_at<I>>()...};
}

TEST_CASE("the views of a plan are the meshes of its value, for every degree tuple of small worlds") {
  static constexpr auto table = all_faces(std::make_index_sequence<num_tuples>{});
  for (const faces& f : table) {
    compare(f.root, root_mesh(f.spec));
    compare(f.dense, dense_mesh(f.spec));
    compare(f.expert, expert_mesh(f.spec));
    compare(f.replicas, dense_mesh(f.spec), axis_set(axis::dp_replicate) | axis::fsdp | axis::cp);
    compare(f.inner, dense_mesh(f.spec), axis::pp | axis::tp);
    compare(f.experts, expert_mesh(f.spec), axis::ep | axis::etp);
  }
}

template <num KeyValueHeads>
struct model_with final {
  static constexpr model_spec spec = [] {
    model_spec m;
    m.num_attention_heads = 8;
    m.num_key_value_heads = KeyValueHeads;
    return m;
  }();
};
struct hybrid final
    : plan<pipeline_parallel<2>, fully_sharded<3>, context_parallel<4, ulysses_ring<2, 2>>, tensor_parallel<8>> {};

TEST_CASE("the attention view cuts cp by method and tp by key/value head") {
  const auto both_faces = [](auto model) {
    using m = decltype(model);
    compare(face_of(attention_mesh<hybrid, m>()), attention_mesh(hybrid::spec, m::spec));
  };
  both_faces(model_with<1>{});
  both_faces(model_with<2>{});
  both_faces(model_with<8>{});
  constexpr auto v = attention_mesh<hybrid, model_with<2>>();
  static_assert(v.degree<axis::tp_heads> == 2 && v.degree<axis::tp_copies> == 4 && v.stride<axis::tp_heads> == 4);
  static_assert(v.degree<axis::cp_ring> == 2 && v.stride<axis::cp_ring> == 16 && v.stride<axis::cp_ulysses> == 8);
}

// ---- the algebra

struct mine final : plan<pipeline_parallel<2>, replicated<2>, fully_sharded<2>, context_parallel<3>, tensor_parallel<2>,
                         expert_parallel<3, expert_tensor_parallel<2>>> {};
constexpr auto root = root_mesh<mine>();      // pp 2, dp_replicate 2, fsdp_cp 6, tp 2
constexpr auto dense = dense_mesh<mine>();    // pp 2, dp_replicate 2, fsdp 2, cp 3, tp 2
constexpr auto expert = expert_mesh<mine>();  // pp 2, dp_replicate 2, efsdp 2, ep 3, etp 2
constexpr num world = mine::world_size;
static_assert(root.size == 48 && dense.size == 48 && expert.size == 48);

/// Of one's own, with an axis of degree 1 and one in the middle that is large.
struct cluster final
    : mesh_root<axis_of<axis::pp, 2>, axis_of<axis::ep, 1>, axis_of<axis::fsdp, 6>, axis_of<axis::tp, 2>> {};
/// The same axes, other ranks.
struct other_cluster final
    : mesh_root<axis_of<axis::pp, 2>, axis_of<axis::ep, 1>, axis_of<axis::fsdp, 6>, axis_of<axis::tp, 2>> {};
static_assert(MeshRoot<cluster> && !PlanType<cluster> && PlanType<mine> && !MeshRoot<mine>);
static_assert(!std::is_same_v<decltype(root_mesh<cluster>()), decltype(root_mesh<other_cluster>())>);
static_assert(MeshView<decltype(root_mesh<cluster>())> && !MeshView<cluster>);
static_assert(std::is_empty_v<decltype(root_mesh<cluster>())>);
static_assert(root_mesh<cluster>().shape == cluster::spec && root_mesh<cluster>().size == 24);

TEST_CASE("the views of a plan with every axis larger than one are the meshes of its value") {
  compare(face_of(root), root_mesh(mine::spec));
  compare(face_of(dense), dense_mesh(mine::spec));
  compare(face_of(expert), expert_mesh(mine::spec));
  compare(face_of(root_mesh<cluster>()), cluster::spec);
}

TEST_CASE("group is what the runtime asks for: group_of, over axes of any one view") {
  using model = model_with<2>;
  constexpr auto attention = attention_mesh<mine, model>();
  for (num rank = 0; rank < world; ++rank) {
    const auto of_value = [&](axis_set over) { return group_of(mine::spec, model::spec, rank, over); };
    CHECK(group<axis::pp>(root, rank) == of_value(axis::pp));
    CHECK(group<axis::fsdp_cp>(root, rank) == of_value(axis::fsdp_cp));
    CHECK(group<axis::cp, axis::tp>(dense, rank) == of_value(axis::cp | axis::tp));
    CHECK(group<axis::dp_replicate, axis::efsdp>(expert, rank) == of_value(axis::dp_replicate | axis::efsdp));
    CHECK(group<axis::ep, axis::etp>(expert, rank) == of_value(axis::ep | axis::etp));
    CHECK(group<axis::cp_ulysses>(attention, rank) == of_value(axis::cp_ulysses));
    CHECK(group<axis::tp_copies>(attention, rank) == of_value(axis::tp_copies));
  }
}

TEST_CASE("coordinates and group: member(index) is the rank, and the index has its places in the view's own mesh") {
  const auto posts = [](auto view, num ranks) {
    for (num rank = 0; rank < ranks; ++rank) {
      const rank_group g = group(view, rank);
      CHECK(g.member(g.index) == rank);
      CHECK(g.size() == view.size);
      const auto at = coordinates(view, rank);
      std::size_t i = 0;
      num previous = -1;
      for (const detail::placed_axis& a : view.axes) CHECK(coordinate(view.shape, g.index, a.name) == at[i++]);
      for (num k = 0; k < g.size(); ++k) {
        CHECK(g.member(k) > previous);  // row-major: ascending
        previous = g.member(k);
        CHECK(group(view, previous).first == g.first);
      }
    }
  };
  posts(root, world);
  posts(dense, world);
  posts(expert, world);
  posts(select<>(dense), world);
  posts(select<axis::dp_replicate, axis::cp>(dense), world);
  posts(select<axis::pp, axis::ep>(expert), world);
  posts(compose(select<axis::tp>(dense), select<axis::fsdp_cp>(root)), world);
  posts(root_mesh<cluster>(), 24);
  for (num rank = 0; rank < world; ++rank) {
    const auto at = coordinates(dense, rank);
    CHECK(at[0] == coordinate<axis::pp>(dense, rank));
    CHECK(at[1] == coordinate<axis::dp_replicate>(dense, rank));
    CHECK(at[2] == coordinate<axis::fsdp>(dense, rank));
    CHECK(at[3] == coordinate<axis::cp>(dense, rank));
    CHECK(at[4] == coordinate<axis::tp>(dense, rank));
    CHECK(at.size() == 5);
    CHECK((((at[0] * 2 + at[1]) * 2 + at[2]) * 3 + at[3]) * 2 + at[4] == rank);
  }
}

/// Axes by number: calls f.operator()<Names...>() for the names whose bits are in Set.
template <unsigned Set, axis... Left, axis... Taken, class F>
void with_subset(std::integer_sequence<axis, Taken...>, F&& f) {
  if constexpr (sizeof...(Left) == 0)
    f.template operator()<Taken...>();
  else
    [&]<axis First, axis... Rest>(std::integer_sequence<axis, First, Rest...>) {
      if constexpr ((Set & 1u) != 0)
        with_subset<(Set >> 1), Rest...>(std::integer_sequence<axis, Taken..., First>{}, f);
      else
        with_subset<(Set >> 1), Rest...>(std::integer_sequence<axis, Taken...>{}, f);
    }
  (std::integer_sequence<axis, Left...>{});
}
template <axis... Names, class F>
void for_each_subset(F&& f) {
  [&]<std::size_t... Set>(std::index_sequence<Set...>) {
    (with_subset<static_cast<unsigned>(Set), Names...>(std::integer_sequence<axis>{}, f), ...);
  }
  (std::make_index_sequence<(std::size_t{1} << sizeof...(Names))>{});
}

TEST_CASE("select: places stay, and the group is the ranks that agree on all other axes") {
  const auto posts = []<axis... All>(auto v, std::integer_sequence<axis, All...>) {
    for_each_subset<All...>([&]<axis... A>() {
      constexpr auto s = select<A...>(v);
      const axis_set kept = (axis_set{} | ... | axis_set(A));
      for (num rank = 0; rank < v.size; ++rank) {
        CHECK((true && ... && (coordinate<A>(s, rank) == coordinate<A>(v, rank))));
        if constexpr (sizeof...(A) > 0) CHECK(group<A...>(v, rank) == group(select<A...>(v), rank));
        std::vector<num> expected, members;
        for (num other = 0; other < v.size; ++other)
          if ((true && ... && (kept.has(All) || coordinate<All>(v, other) == coordinate<All>(v, rank))))
            expected.push_back(other);
        const rank_group g = group(s, rank);
        for (num i = 0; i < g.size(); ++i) members.push_back(g.member(i));
        CHECK(members == expected);
      }
    });
  };
  posts(dense, std::integer_sequence<axis, axis::pp, axis::dp_replicate, axis::fsdp, axis::cp, axis::tp>{});
  posts(expert, std::integer_sequence<axis, axis::pp, axis::dp_replicate, axis::efsdp, axis::ep, axis::etp>{});
  posts(root_mesh<cluster>(), std::integer_sequence<axis, axis::pp, axis::ep, axis::fsdp, axis::tp>{});
  // The order is the view's, however the axes are named.
  static_assert(select<axis::tp, axis::pp>(dense) == select<axis::pp, axis::tp>(dense));
}

TEST_CASE("flatten: the merged place, and the same ranks in the same order") {
  const auto pair = []<axis Whole, axis First, axis Second>(auto v) {
    constexpr auto result = flatten<Whole, First, Second>(v);
    static_assert(result.size == v.size && result.shape.axes.size() == v.shape.axes.size() - 1);
    CHECK(result.shape == flatten(v.shape, First, Second, Whole));  // the value face
    for (num r = 0; r < world; ++r) {
      CHECK(coordinate<Whole>(result, r) ==
            coordinate<First>(v, r) * v.template degree<Second> + coordinate<Second>(v, r));
      const rank_group before = group(v, r), after = group(result, r);
      CHECK(before.index == after.index);
      for (num i = 0; i < before.size(); ++i) CHECK(before.member(i) == after.member(i));
    }
  };
  pair.template operator()<axis::fsdp_cp, axis::fsdp, axis::cp>(dense);
  pair.template operator()<axis::efsdp, axis::cp, axis::tp>(dense);
  pair.template operator()<axis::pp, axis::pp, axis::dp_replicate>(dense);  // a part's name is free again
  pair.template operator()<axis::cp, axis::ep, axis::etp>(expert);
  pair.template operator()<axis::fsdp_cp, axis::fsdp, axis::cp>(select<axis::pp, axis::fsdp, axis::cp>(dense));
  for (num r = 0; r < world; ++r) {
    constexpr auto result = flatten<axis::efsdp, axis::fsdp, axis::cp, axis::tp>(dense);
    CHECK(coordinate<axis::efsdp>(result, r) ==
          (coordinate<axis::fsdp>(dense, r) * dense.degree<axis::cp> + coordinate<axis::cp>(dense, r)) *
                  dense.degree<axis::tp> +
              coordinate<axis::tp>(dense, r));
  }
  static_assert(flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense) == root);
  static_assert(flatten<axis::efsdp, axis::fsdp_cp, axis::tp>(root) ==
                flatten<axis::efsdp, axis::efsdp, axis::ep, axis::etp>(expert));
  static_assert(flatten<axis::fsdp, axis::fsdp>(dense) == dense);  // a new name, or the same
  // An axis of degree 1 between them leaves neighbours in ranks, once it is not selected.
  static_assert(flatten<axis::fsdp, axis::pp, axis::fsdp>(select<axis::pp, axis::fsdp>(root_mesh<cluster>()))
                    .degree<axis::fsdp> == 12);
}

TEST_CASE("unflatten: flatten gives back the view, and the parts are the value's") {
  const auto posts = []<axis Whole, class... Parts>(auto v, list<Parts...>) {
    constexpr auto result = unflatten<Whole, Parts...>(v);
    static_assert(flatten<Whole, Parts::name...>(result) == v);
    static_assert(result.size == v.size);
    static_assert(((result.template degree<Parts::name> == Parts::degree) && ...));
  };
  posts.template operator()<axis::fsdp_cp>(root, list<axis_of<axis::fsdp, 2>, axis_of<axis::cp, 3>>{});
  posts.template operator()<axis::fsdp_cp>(root, list<axis_of<axis::fsdp, 1>, axis_of<axis::cp, 6>>{});
  posts.template operator()<axis::cp>(dense, list<axis_of<axis::cp_ring, 3>, axis_of<axis::cp_ulysses, 1>>{});
  posts.template operator()<axis::fsdp>(root_mesh<cluster>(), list<axis_of<axis::fsdp, 3>, axis_of<axis::cp, 2>>{});
  posts.template operator()<axis::fsdp>(select<axis::fsdp>(root_mesh<cluster>()),
                                        list<axis_of<axis::cp_ring, 3>, axis_of<axis::cp_ulysses, 2>>{});
  constexpr auto three =
      unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 1>, axis_of<axis::cp_ring, 3>, axis_of<axis::cp_ulysses, 2>>(root);
  static_assert(three.stride<axis::cp_ring> == 4 && three.stride<axis::cp_ulysses> == 2);
  // The design's own meshes, one from another.
  static_assert(unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 3>>(root) == dense);
  static_assert(unflatten<axis::efsdp, axis_of<axis::efsdp, 2>, axis_of<axis::ep, 3>, axis_of<axis::etp, 2>>(
                    flatten<axis::efsdp, axis::fsdp_cp, axis::tp>(root)) == expert);
  CHECK(unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 3>>(root).shape ==
        unflatten(root.shape, axis::fsdp_cp, axis::fsdp, axis::cp, 3));
}

/// The posts of compose, and what they are for: every pair of places is met once, by a rank that knows both.
template <class V, class W>
void check_composed(V v, W w) {
  constexpr auto both = compose(V{}, W{});
  static_assert(both == compose(W{}, V{}));
  CHECK(both.size == v.size * w.size);
  CHECK(both.names == (v.names | w.names));
  for (num rank = 0; rank < world; ++rank) {
    const auto at = coordinates(both, rank);
    for (std::size_t i = 0; i < both.axes.size(); ++i) {
      const auto of_v = coordinates(v, rank), of_w = coordinates(w, rank);
      for (std::size_t k = 0; k < v.axes.size(); ++k)
        if (v.axes[k].name == both.axes[i].name) CHECK(at[i] == of_v[k]);
      for (std::size_t k = 0; k < w.axes.size(); ++k)
        if (w.axes[k].name == both.axes[i].name) CHECK(at[i] == of_w[k]);
    }
    const rank_group g = group(both, rank);
    CHECK(g.member(g.index) == rank);
    std::set<std::pair<num, num>> met;
    for (num i = 0; i < g.size(); ++i) {
      const num member = g.member(i);
      CHECK((member >= 0 && member < world));
      if (i > 0) CHECK(g.member(i - 1) < member);
      met.insert({group(v, member).index, group(w, member).index});
    }
    CHECK(static_cast<num>(met.size()) == v.size * w.size);
  }
}

TEST_CASE("compose: places are those of both views, each pair of places once, whatever the order") {
  for_each_subset<axis::pp, axis::dp_replicate, axis::fsdp, axis::cp>([]<axis... A>() {
    check_composed(select<A...>(dense), select<axis::tp>(dense));
    check_composed(select<A...>(dense), select<>(expert));
  });
  check_composed(select<axis::tp>(dense), select<axis::fsdp_cp>(root));
  check_composed(select<axis::tp, axis::dp_replicate>(dense), select<axis::fsdp_cp>(root));
  check_composed(select<axis::etp>(expert), select<axis::cp>(dense));  // etp and tp are the same ranks here
  check_composed(select<axis::pp, axis::cp>(dense), select<axis::efsdp, axis::etp>(expert));
  static_assert(compose(select<axis::tp>(dense), select<axis::fsdp_cp>(root)) == select<axis::fsdp_cp, axis::tp>(root));
  static_assert(compose(select<axis::cp, axis::pp>(dense), select<axis::tp, axis::fsdp, axis::dp_replicate>(dense)) ==
                dense);
}

// An axis of degree 1 stands where it stood, and two of them in one order.
struct sharded final : plan<fully_sharded<4>> {};
static_assert(compose(select<axis::tp>(dense_mesh<sharded>()), select<axis::fsdp_cp>(root_mesh<sharded>())) ==
              select<axis::fsdp_cp, axis::tp>(root_mesh<sharded>()));
static_assert(compose(select<axis::tp>(dense_mesh<sharded>()), select<axis::cp>(dense_mesh<sharded>())) ==
              compose(select<axis::cp>(dense_mesh<sharded>()), select<axis::tp>(dense_mesh<sharded>())));

TEST_CASE("two axes are apart when in each group every pair of places is a rank that knows both, and only then") {
  constexpr num most = 16;
  for (num s = 1; s <= most; ++s)
    for (num d = 1; s * d <= most; ++d)
      for (num t = 1; t <= most; ++t)
        for (num e = 1; t * e <= most; ++e) {
          bool each_pair = true;
          for (num rank = 0; rank < std::lcm(s * d, t * e); ++rank) {
            const num first = rank - place_on(d, s, rank) * s - place_on(e, t, rank) * t;
            for (num i = 0; i < d; ++i)
              for (num k = 0; k < e; ++k)
                each_pair = each_pair && first >= 0 && place_on(d, s, first + i * s + k * t) == i &&
                            place_on(e, t, first + i * s + k * t) == k;
          }
          if (detail::apart({d, s}, {e, t}) != each_pair) {
            INFO("degree " << d << " stride " << s << ", degree " << e << " stride " << t);
            CHECK(detail::apart({d, s}, {e, t}) == each_pair);
          }
        }
}

}  // namespace
