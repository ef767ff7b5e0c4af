// What the operating system says about the CPU.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kdtree::cli {

// "AMD EPYC 9B14"; "unknown CPU" where the system does not say.
std::string cpu_name();
// The instruction sets that matter to this library and whether the CPU and the system offer them.
std::vector<std::pair<std::string, bool>> cpu_features();
// "AMD EPYC 9B14, 2 threads": how a benchmark names the machine.
std::string machine_name();

}  // namespace kdtree::cli
