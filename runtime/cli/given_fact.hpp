// SPDX-License-Identifier: Apache-2.0
// What all processes of a run must have been given alike, as text.
#ifndef SHARDPLAN_RUNTIME_CLI_GIVEN_FACT_HPP
#define SHARDPLAN_RUNTIME_CLI_GIVEN_FACT_HPP

#include <filesystem>
#include <string>
#include <vector>

namespace shardplan::runtime {

/// What it is called, and what it is here.
struct given_fact {
  std::string name, value;
};

/// What differs between ranks; "" when nothing does. `all`: by rank. Ranks that were given the same are named together.
std::string describe_differences(const std::vector<std::vector<given_fact>>& all);

/// 32 hexadecimal digits that differ, but for chance, when a byte of the file does; "absent" when it cannot be read.
std::string digest_of_file(const std::filesystem::path& file);
/// What the configuration and the weights of an opened checkpoint are.
std::vector<given_fact> facts_of_checkpoint(const std::filesystem::path& directory);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_GIVEN_FACT_HPP
