// The backends that run on this machine's processor, the cpu one once for each SIMD target it has.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/cpu/tile.h"

namespace kdtree::testing {

struct HostBackend {
  int32_t id;
  std::string cpu_target;  // "" = none
  std::string name;        // for GoogleTest: letters, digits and underscores
};

// For GoogleTest's messages.
inline void PrintTo(const HostBackend& backend, std::ostream* out) {
  *out << backend.name;
}

inline std::vector<HostBackend> cpu_backends() {
  std::vector<HostBackend> list;
  for (const CpuTarget& target : cpu_targets()) {
    if (!target.supported) continue;
    std::string name = std::string("cpu_") + target.name;
    std::ranges::replace(name, '-', '_');
    list.push_back({KDTREE_BACKEND_CPU, target.name, name});
  }
  return list;
}

inline std::vector<HostBackend> host_backends() {
  std::vector<HostBackend> list = cpu_backends();
  list.insert(list.begin(), {KDTREE_BACKEND_ORACLE, "", "oracle"});
  return list;
}

// Forces the SIMD target as users do, for as long as it lives.
class CpuTargetChoice {
 public:
  explicit CpuTargetChoice(const std::string& name) { setenv("KDTREE_CPU_TARGET", name.c_str(), 1); }
  ~CpuTargetChoice() { unsetenv("KDTREE_CPU_TARGET"); }
  CpuTargetChoice(const CpuTargetChoice&) = delete;
  CpuTargetChoice& operator=(const CpuTargetChoice&) = delete;
};

}  // namespace kdtree::testing
