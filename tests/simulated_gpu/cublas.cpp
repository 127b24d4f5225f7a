// SPDX-License-Identifier: Apache-2.0
// Products of cuBLAS: column-major, on a stream. Sums are formed in one order.
#include <cublas_v2.h>

#include "runtime/device/cuda/real.hpp"
#include "tests/simulated_gpu/machine.hpp"

using namespace simulated;
using shardplan::runtime::cuda::bf16;

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace {

using whole = std::int64_t;

std::size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 0;
}

template <class F>
auto with_type(cudaDataType_t type, F&& f) {
  switch (type) {
    case CUDA_R_64F:
      return f(double{});
    case CUDA_R_32F:
      return f(float{});
    default:
      return f(bf16{});
  }
}

struct matrix {
  const void* data;
  cudaDataType_t type;
  whole stride;
};

struct gemm {
  bool transpose_a, transpose_b;
  whole m, n, k;
  matrix a, b;
  void* c;
  cudaDataType_t type_of_c;
  whole stride_of_c;
  double alpha, beta;
  bool in_double;

  std::size_t extent_of(const matrix& x, whole rows, whole cols) const {
    return rows == 0 || cols == 0 ? 0 : static_cast<std::size_t>((cols - 1) * x.stride + rows) * size_of(x.type);
  }
  std::size_t bytes_of_a() const { return transpose_a ? extent_of(a, k, m) : extent_of(a, m, k); }
  std::size_t bytes_of_b() const { return transpose_b ? extent_of(b, n, k) : extent_of(b, k, n); }
  std::size_t bytes_of_c() const { return extent_of({c, type_of_c, stride_of_c}, m, n); }

  cublasStatus_t refusal(bool result_like_operands) const {
    if (m < 0 || n < 0 || k < 0 || a.stride < std::max<whole>(1, transpose_a ? k : m) ||
        b.stride < std::max<whole>(1, transpose_b ? n : k) || stride_of_c < std::max<whole>(1, m))
      return CUBLAS_STATUS_INVALID_VALUE;
    const bool results =
        type_of_c == a.type || (!result_like_operands && a.type == CUDA_R_16BF && type_of_c == CUDA_R_32F);
    if (a.type != b.type || !results || size_of(a.type) == 0 || in_double != (a.type == CUDA_R_64F))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
  }

  template <class A>
  void run_in() const {
    const auto element = [](const matrix& x, bool transpose, whole i, whole j) {
      const auto at = static_cast<std::size_t>(transpose ? j + i * x.stride : i + j * x.stride);
      return with_type(x.type, [&](auto zero) {
        return static_cast<A>(shardplan::runtime::cuda::widen(static_cast<const decltype(zero)*>(x.data)[at]));
      });
    };
    for (whole j = 0; j < n; ++j)
      for (whole i = 0; i < m; ++i) {
        A sum = 0;
        for (whole l = 0; l < k; ++l) sum += element(a, transpose_a, i, l) * element(b, transpose_b, l, j);
        sum *= static_cast<A>(alpha);
        const matrix before{c, type_of_c, stride_of_c};
        if (beta != 0) sum += static_cast<A>(beta) * element(before, false, i, j);  // else not read, NaN or not
        with_type(type_of_c, [&](auto zero) {
          using T = decltype(zero);
          static_cast<T*>(c)[i + j * stride_of_c] =
              shardplan::runtime::cuda::narrow<T>(static_cast<shardplan::runtime::cuda::accumulated<T>>(sum));
        });
      }
  }
  std::string name() const {
    return "product " + std::to_string(type_of_c) + " of " + std::to_string(a.type) + (transpose_a ? " T" : " N") +
           (transpose_b ? "T" : "N");
  }
  /// `called`: whether it is on the stream already, after which its operands may be freed there.
  bool lies_on(arena& memory, bool called) const {
    const auto lies = [&](const void* at, std::size_t bytes) {
      return bytes == 0 || memory.is_usable(at, bytes, called);
    };
    return lies(a.data, bytes_of_a()) && lies(b.data, bytes_of_b()) && lies(c, bytes_of_c());
  }
  void run() const { in_double ? run_in<double>() : run_in<float>(); }
};

/// alpha or beta number i; they are the host's.
double scalar(const void* values, bool in_double, whole i = 0) {
  return in_double ? static_cast<const double*>(values)[i] : static_cast<double>(static_cast<const float*>(values)[i]);
}

/// The stream of a handle; null where the handle is of another device than this thread's.
CUstream_st* stream_of(machine& m, const cublasContext& handle) {
  CUstream_st* const stream = m.find(handle.stream);
  return stream != nullptr && stream->device == handle.device ? stream : nullptr;
}

bool computes_in_double(cublasComputeType_t type) {
  return type == CUBLAS_COMPUTE_64F || type == CUBLAS_COMPUTE_64F_PEDANTIC;
}

}  // namespace

/// Allocates memory of the device, which may wait for all that it does, and here does.
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  machine& m = machine::it();
  if (m.num_devices() == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  auto held = m.lock();
  m.wait_for(held, machine::current_device());
  *handle = new cublasContext{machine::current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

/// Waits for the device, as that of cuBLAS does.
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  machine& m = machine::it();
  auto held = m.lock();
  m.wait_for(held, handle->device);
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  machine& m = machine::it();
  const auto held = m.lock();
  handle->stream = stream;
  return stream_of(m, *handle) != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* at, std::size_t bytes) {
  machine& m = machine::it();
  const auto held = m.lock();
  return m.place_of(at, bytes) == place::device ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b,
                               whole m, whole n, whole k, const void* alpha, const void* a, cudaDataType type_of_a,
                               whole stride_of_a, const void* b, cudaDataType type_of_b, whole stride_of_b,
                               const void* beta, void* c, cudaDataType type_of_c, whole stride_of_c,
                               cublasComputeType_t compute, cublasGemmAlgo_t) {
  machine& device = machine::it();
  auto held = device.lock();
  const bool in_double = computes_in_double(compute);
  const gemm g{transpose_a != CUBLAS_OP_N,  transpose_b != CUBLAS_OP_N,  m,        n,         k,
               {a, type_of_a, stride_of_a}, {b, type_of_b, stride_of_b}, c,        type_of_c, stride_of_c,
               scalar(alpha, in_double),    scalar(beta, in_double),     in_double};
  if (const cublasStatus_t wrong = g.refusal(false); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
  CUstream_st* const stream = stream_of(device, *handle);
  if (stream == nullptr || device.has_failed()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!g.lies_on(device.memory(stream->device), false)) {
    complain("cublasGemmEx is given what is no allocation of its device");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  device.load(held, stream->device, g.name());
  device.enqueue(stream, [&device, stream, g] {
    const arena::opened now(device.memory(stream->device));
    g.run();
    return step::done;
  });
  return CUBLAS_STATUS_SUCCESS;
}

/// The arrays of pointers are the device's, and read when the stream comes to it; all others are the host's.
cublasStatus_t cublasGemmGroupedBatchedEx_64(cublasHandle_t handle, const cublasOperation_t transpose_a[],
                                             const cublasOperation_t transpose_b[], const whole m[], const whole n[],
                                             const whole k[], const void* alpha, const void* const a[],
                                             cudaDataType_t type_of_a, const whole stride_of_a[], const void* const b[],
                                             cudaDataType_t type_of_b, const whole stride_of_b[], const void* beta,
                                             void* const c[], cudaDataType_t type_of_c, const whole stride_of_c[],
                                             whole num_groups, const whole size[], cublasComputeType_t compute) {
  machine& device = machine::it();
  auto held = device.lock();
  const bool in_double = computes_in_double(compute);
  std::vector<gemm> all;  // of each product, without its addresses
  for (whole g = 0; g < num_groups; ++g) {
    const gemm of_group{
        transpose_a[g] != CUBLAS_OP_N,        transpose_b[g] != CUBLAS_OP_N,        m[g],     n[g],      k[g],
        {nullptr, type_of_a, stride_of_a[g]}, {nullptr, type_of_b, stride_of_b[g]}, nullptr,  type_of_c, stride_of_c[g],
        scalar(alpha, in_double, g),          scalar(beta, in_double, g),           in_double};
    if (const cublasStatus_t wrong = of_group.refusal(true); wrong != CUBLAS_STATUS_SUCCESS) return wrong;
    if (size[g] < 0) return CUBLAS_STATUS_INVALID_VALUE;
    all.insert(all.end(), static_cast<std::size_t>(size[g]), of_group);
  }
  CUstream_st* const stream = stream_of(device, *handle);
  if (stream == nullptr || device.has_failed()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (all.empty()) return CUBLAS_STATUS_SUCCESS;
  for (const void* array : {static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c)})
    if (device.place_of(array, all.size() * sizeof(void*)) != place::device ||
        device.device_of(array) != stream->device) {
      complain("cublasGemmGroupedBatchedEx is given pointers that are no allocation of its device");
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  device.load(held, stream->device, "grouped " + all[0].name());
  device.enqueue(stream, [&device, stream, all, a, b, c] {
    const arena::opened now(device.memory(stream->device));
    for (std::size_t i = 0; i < all.size(); ++i) {
      gemm g = all[i];
      g.a.data = a[i], g.b.data = b[i], g.c = c[i];
      if (!g.lies_on(device.memory(stream->device), true)) {
        device.fail("cublasGemmGroupedBatchedEx finds a pointer that is no allocation of its device");
        return step::done;
      }
      g.run();
    }
    return step::done;
  });
  return CUBLAS_STATUS_SUCCESS;
}

// ---- errors

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
