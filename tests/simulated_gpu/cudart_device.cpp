// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime says of devices, of errors and of addresses.
#include <cstdio>   // snprintf
#include <utility>  // exchange

#include "tests/simulated_gpu/machine.hpp"

using namespace simulated;

cudaError_t cudaGetDeviceCount(int* count) {
  machine& m = machine::it();
  const auto held = m.lock();
  *count = m.num_devices();
  return report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (m.num_devices() == 0) return report(cudaErrorNoDevice);
  if (device < 0 || device >= m.num_devices()) return report(cudaErrorInvalidDevice);
  machine::current_device() = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = machine::current_device();
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  machine& m = machine::it();
  auto held = m.lock();
  m.wait_for(held, machine::current_device());
  return report(m.has_failed() ? cudaErrorIllegalAddress : cudaSuccess);
}

/// Those of an H100.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (device < 0 || device >= m.num_devices()) return report(cudaErrorInvalidDevice);
  const std::map<cudaDeviceAttr, int> values{
      {cudaDevAttrMaxGridDimX, 2147483647},        {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrComputeCapabilityMajor, 9},      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMultiProcessorCount, 132},       {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMemoryPoolsSupported, 1}};
  const auto found = values.find(which);
  if (found == values.end()) {
    complain("attribute " + std::to_string(which) + " of a device is not simulated");
    return report(cudaErrorInvalidValue);
  }
  *value = found->second;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (device < 0 || device >= m.num_devices()) return report(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "simulated GPU");
  properties->totalGlobalMem = m.memory(device).size();
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->sharedMemPerBlockOptin = 232448;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* what, const void* at) {
  machine& m = machine::it();
  const auto held = m.lock();
  *what = {};
  what->device = m.device_of(at);
  switch (m.place_of(at, 0)) {
    case place::device:
      what->type = cudaMemoryTypeDevice;
      what->devicePointer = const_cast<void*>(at);
      break;
    case place::pinned:
      what->type = cudaMemoryTypeHost;
      what->device = machine::current_device();
      what->hostPointer = what->devicePointer = const_cast<void*>(at);
      break;
    case place::pageable:
    case place::nowhere:
      what->type = cudaMemoryTypeUnregistered;
      break;
  }
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() { return std::exchange(machine::last_error(), cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return machine::last_error(); }

namespace {

struct error_text {
  cudaError_t code;
  const char *name, *text;
};
constexpr error_text error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"}};

const error_text& text_of(cudaError_t code) {
  static constexpr error_text unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const error_text& e : error_texts)
    if (e.code == code) return e;
  return unknown;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t code) { return text_of(code).name; }
const char* cudaGetErrorString(cudaError_t code) { return text_of(code).text; }
