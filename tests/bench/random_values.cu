// SPDX-License-Identifier: Apache-2.0
#include "random_values.hpp"
#include "runtime/device/cuda/launcher.cuh"

using namespace shardplan::runtime::cuda;

SHARDPLAN_GPU_ELEMENTS(random_body<bf16>);
