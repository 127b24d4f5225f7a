// SPDX-License-Identifier: Apache-2.0
// The verdict of every case, asked of types: compiling this file is the test. Written by make_cases.py.
#include "cases.hpp"

namespace shardplan::cases {
namespace {

template <std::size_t Index, class Plan = plan_at<Index>>
concept accepted = LegalPlan<Plan, model_at<Index>, batch_at<Index>, on_ranks<all[Index].world>>;

/// Does not compile when a rule is broken.
template <std::size_t Index, class Plan = padded_plan_at<Index>>
inline constexpr num ranks_of = checked<Plan, model_at<Index>, batch_at<Index>, on_ranks<all[Index].world>>::world_size;

static_assert(ranks_of<0> == 4, "PB001 must be accepted");
static_assert(ranks_of<1> == 4, "PB003 must be accepted");
static_assert(ranks_of<2> == 2, "PB004 must be accepted");
static_assert(ranks_of<3> == 2, "PB006 must be accepted");
static_assert(ranks_of<4> == 4, "PB007 must be accepted");
static_assert(ranks_of<5> == 2, "PB009 must be accepted");
static_assert(ranks_of<6> == 2, "PB010 must be accepted");
static_assert(ranks_of<7> == 2, "PB012 must be accepted");
static_assert(ranks_of<8> == 4, "PB013 must be accepted");
static_assert(ranks_of<9> == 8, "PB015 must be accepted");
static_assert(ranks_of<10> == 4, "PB017 must be accepted");
static_assert(ranks_of<11> == 2, "PB018 must be accepted");
static_assert(ranks_of<12> == 4, "PB020 must be accepted");
static_assert(ranks_of<13> == 4, "PB021 must be accepted");
static_assert(ranks_of<14> == 2, "PB023 must be accepted");
static_assert(ranks_of<15> == 4, "PB024 must be accepted");
static_assert(ranks_of<16> == 2, "PB026 must be accepted");
static_assert(ranks_of<17> == 2, "PB027 must be accepted");
static_assert(ranks_of<18> == 2, "PB029 must be accepted");
static_assert(!accepted<19>, "PB030 must be refused");
static_assert(ranks_of<20> == 4, "PB032 must be accepted");
static_assert(!accepted<21>, "PB033 must be refused");
static_assert(!accepted<22>, "PB035 must be refused");
static_assert(ranks_of<23> == 2, "PB037 must be accepted");
static_assert(!accepted<24>, "PB038 must be refused");
static_assert(!accepted<25>, "PB039 must be refused");
static_assert(ranks_of<26> == 8, "PB040 must be accepted");
static_assert(!accepted<27>, "PB041 must be refused");
static_assert(ranks_of<28> == 4, "PB043 must be accepted");
static_assert(ranks_of<29> == 2, "PB045 must be accepted");
static_assert(!accepted<30>, "PB046 must be refused");
static_assert(!accepted<31>, "PB047 must be refused");
static_assert(ranks_of<32> == 4, "PB049 must be accepted");
static_assert(ranks_of<33> == 4, "PB050 must be accepted");
static_assert(!accepted<34>, "PB052 must be refused");
static_assert(ranks_of<35> == 2, "PB053 must be accepted");
static_assert(ranks_of<36> == 2, "PB055 must be accepted");
static_assert(!accepted<37>, "PB057 must be refused");
static_assert(ranks_of<37> == 3, "PB057 must be accepted");
static_assert(ranks_of<38> == 2, "PB058 must be accepted");
static_assert(ranks_of<39> == 4, "PB060 must be accepted");
static_assert(ranks_of<40> == 4, "PB061 must be accepted");
static_assert(!accepted<41>, "PB063 must be refused");
static_assert(!accepted<42>, "PB065 must be refused");
static_assert(ranks_of<43> == 3, "PB066 must be accepted");
static_assert(ranks_of<44> == 2, "PB067 must be accepted");
static_assert(ranks_of<45> == 2, "PB068 must be accepted");
static_assert(ranks_of<46> == 4, "PB069 must be accepted");
static_assert(ranks_of<47> == 4, "PB072 must be accepted");
static_assert(!accepted<48>, "PB073 must be refused");
static_assert(ranks_of<49> == 4, "PB074 must be accepted");
static_assert(ranks_of<50> == 2, "PB075 must be accepted");
static_assert(ranks_of<51> == 4, "PB077 must be accepted");
static_assert(!accepted<52>, "PB079 must be refused");
static_assert(ranks_of<52> == 4, "PB079 must be accepted");
static_assert(!accepted<53>, "PB080 must be refused");
static_assert(ranks_of<53> == 4, "PB080 must be accepted");
static_assert(!accepted<54>, "PB082 must be refused");
static_assert(ranks_of<54> == 2, "PB082 must be accepted");
static_assert(!accepted<55>, "PB083 must be refused");
static_assert(ranks_of<55> == 2, "PB083 must be accepted");
static_assert(ranks_of<56> == 2, "PB084 must be accepted");
static_assert(ranks_of<57> == 8, "PB086 must be accepted");
static_assert(ranks_of<58> == 2, "PB087 must be accepted");
static_assert(ranks_of<59> == 2, "PB089 must be accepted");
static_assert(ranks_of<60> == 4, "PB090 must be accepted");
static_assert(ranks_of<61> == 2, "PB092 must be accepted");
static_assert(ranks_of<62> == 4, "PB093 must be accepted");
static_assert(ranks_of<63> == 4, "PB095 must be accepted");
static_assert(ranks_of<64> == 4, "PB096 must be accepted");
static_assert(ranks_of<65> == 2, "PB098 must be accepted");
static_assert(ranks_of<66> == 4, "PB099 must be accepted");
static_assert(ranks_of<67> == 2, "PB101 must be accepted");
static_assert(ranks_of<68> == 2, "PB102 must be accepted");
static_assert(ranks_of<69> == 2, "PB104 must be accepted");
static_assert(ranks_of<70> == 2, "PB105 must be accepted");
static_assert(ranks_of<71> == 4, "PB107 must be accepted");
static_assert(ranks_of<72> == 2, "PB108 must be accepted");
static_assert(ranks_of<73> == 4, "PB110 must be accepted");
static_assert(ranks_of<74> == 2, "PB111 must be accepted");
static_assert(ranks_of<75> == 2, "PB113 must be accepted");
static_assert(ranks_of<76> == 2, "PB114 must be accepted");
static_assert(ranks_of<77> == 2, "PB116 must be accepted");
static_assert(ranks_of<78> == 2, "PB117 must be accepted");
static_assert(ranks_of<79> == 2, "PB119 must be accepted");
static_assert(ranks_of<80> == 2, "PB120 must be accepted");
static_assert(ranks_of<81> == 2, "PB123 must be accepted");
static_assert(ranks_of<82> == 2, "PB124 must be accepted");

}  // namespace
}  // namespace shardplan::cases
