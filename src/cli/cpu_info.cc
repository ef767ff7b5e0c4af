#include "cli/cpu_info.h"

#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/format.h>

namespace kdtree::cli {
namespace {

// The value of the first "key : value" line of /proc/cpuinfo. That file, unlike the CPUID instruction, also
// tells what the operating system has enabled, and it exists on every architecture.
std::string cpuinfo_value(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t start = line.find_first_not_of(' ', colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace

std::string cpu_name() {
  const std::string name = cpuinfo_value("model name");
  return name.empty() ? "unknown CPU" : name;
}

std::vector<std::pair<std::string, bool>> cpu_features() {
#if defined(__aarch64__)
  const std::pair<const char*, const char*> known[] = {
      {"NEON", "asimd"}, {"BF16", "bf16"}, {"SVE", "sve"}, {"SVE2", "sve2"}};
  const std::string flags = cpuinfo_value("Features");
#else
  const std::pair<const char*, const char*> known[] = {{"AVX2", "avx2"},
                                                       {"FMA", "fma"},
                                                       {"F16C", "f16c"},
                                                       {"AVX-512F", "avx512f"},
                                                       {"AVX-512-BF16", "avx512_bf16"},
                                                       {"AMX-BF16", "amx_bf16"}};
  const std::string flags = cpuinfo_value("flags");
#endif
  std::vector<std::pair<std::string, bool>> features;
  for (const auto& [name, flag] : known) {
    std::istringstream words(flags);
    std::string word;
    bool found = false;
    while (!found && words >> word)
      found = word == flag;
    features.emplace_back(name, found);
  }
  return features;
}

std::string machine_name() {
  return fmt::format("{}, {} threads", cpu_name(), std::thread::hardware_concurrency());
}

}  // namespace kdtree::cli
