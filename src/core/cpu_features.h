// What this processor has beyond the vectors that Highway tells apart.
#pragma once

namespace kdtree {

// AVX-512-BF16.
inline bool has_bf16_products() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

// Whether they are the fastest there are. Intel's VDPBF16PS is slower than the fp32 products it replaces;
// AMD's does twice their work in the same time (docs/kernels/cpu.md).
inline bool fast_bf16_products() {
#if defined(__x86_64__)
  return has_bf16_products() && __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

}  // namespace kdtree
