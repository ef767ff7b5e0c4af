// Which of Highway's targets the SIMD code is compiled for; to be included before Highway. The targets beyond
// AVX3 have nothing that this code would use.
#pragma once

#define KDTREE_UNUSED_TARGETS (HWY_SSSE3 | (HWY_AVX3 - 1) | HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128)
#ifdef KDTREE_SANITIZED  // a target takes a compiler minutes then, and all have the same source
#define HWY_DISABLED_TARGETS (KDTREE_UNUSED_TARGETS | HWY_AVX3 | HWY_SSE4)
#else
#define HWY_DISABLED_TARGETS KDTREE_UNUSED_TARGETS
#endif
