// SPDX-License-Identifier: Apache-2.0
// The version of the library; the build reads it from here.
#ifndef SHARDPLAN_VERSION_HPP
#define SHARDPLAN_VERSION_HPP

#define SHARDPLAN_VERSION_MAJOR 0
#define SHARDPLAN_VERSION_MINOR 1
#define SHARDPLAN_VERSION_PATCH 0

#endif  // SHARDPLAN_VERSION_HPP
