// What the benchmarks share: the end of a failed call, and the fields that every cell of bench/results ends
// with.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

#include "cli/cpu_info.h"
#include "cli/timing.h"
#include "kdtree/kdtree.h"

namespace kdtree {

using Json = nlohmann::ordered_json;

inline void check(int32_t status) {
  if (status == KDTREE_OK) return;
  char message[512];
  kdtree_last_error(message, sizeof(message));
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, kdtree_status_name(status), message);
  std::exit(1);
}

struct Origin {
  std::string date;
  std::string commit;
};

// Prints `json` (bench, backend, case and what else the bench has) with its times, rate and baseline.
inline void print_cell(Json json, const cli::Timing& timing, const Json& rate, const std::string& baseline,
                       double baseline_us, const Origin& origin) {
  json["us"] = timing.median_us;
  json["min_us"] = timing.min_us;
  json.update(rate);
  json["baseline"] = baseline;
  json["baseline_us"] = baseline_us;
  json["ratio"] = baseline_us / timing.median_us;
  json["machine"] = cli::machine_name();
  json["date"] = origin.date;
  json["commit"] = origin.commit;
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

}  // namespace kdtree
