// kdtree info: what this build and this machine can do.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>

#include <hwy/highway.h>
#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "attention/cpu/tile.h"
#include "cli/command.h"
#include "cli/cpu_info.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "kernels/devices.h"

namespace kdtree::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree info\n"
    "  kdtree info --json | jq '.backends[] | select(.available) | .name'\n";

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

// The targets that the SIMD code was compiled for, best first: a lower bit is a better target.
std::vector<std::string> simd_targets(int64_t mask) {
  std::vector<std::string> names;
  for (int64_t rest = mask; rest != 0; rest &= rest - 1) {
    names.emplace_back(hwy::TargetName(rest & -rest));
  }
  return names;
}

// The fastest backend that the current device has, or one with the reason why it has none.
Backend cuda_choice() {
  const std::span<const Backend> all = backends();
  Backend choice = *std::ranges::find(all, KDTREE_BACKEND_CUDA_NAIVE, &Backend::id);
  for (const Backend& backend : all)
    if (backend.id > KDTREE_BACKEND_CUDA_NAIVE && backend.available) choice = backend;
  return choice;
}

Json cuda_json() {
  const auto devices = cuda_devices();
  if (!devices) return {{"devices", Json::array()}, {"reason", devices.error().message}};
  Json list = Json::array();
  for (const CudaDevice& device : *devices) {
    const OnCudaDevice on(static_cast<int>(list.size()));
    const Backend choice = cuda_choice();
    list.push_back({{"name", device.name},
                    {"compute_capability", device.compute_capability},
                    {"multiprocessors", device.multiprocessors},
                    {"shared_memory_bytes", device.shared_memory_bytes},
                    {"memory_bytes", device.memory_bytes},
                    {"backend", choice.available ? Json(choice.name) : Json()},
                    {"backend_reason", choice.reason}});
  }
  return {{"devices", list}, {"reason", list.empty() ? Json("no device, or no driver for it") : Json()}};
}

Json collect() {
  Json info;
  info["version"] = kdtree_version();
  info["abi_version"] = KDTREE_ABI_VERSION;
  info["compiler"] = compiler();
  info["cpu"] = cpu_name();
  info["cpu_features"] = Json::object();
  for (const auto& [name, present] : cpu_features())
    info["cpu_features"][name] = present;
  const std::vector<std::string> usable = simd_targets(hwy::SupportedTargets() & HWY_TARGETS);
  info["simd_compiled"] = simd_targets(HWY_TARGETS);
  info["simd_chosen"] = usable.empty() ? Json() : Json(usable.front());
  info["cpu_targets"] = Json::array();
  for (const CpuTarget& target : cpu_targets())
    info["cpu_targets"].push_back({{"name", target.name}, {"supported", target.supported}});
  const auto chosen = choose_cpu_target();
  info["cpu_target"] = chosen ? Json((*chosen)->name) : Json();
  info["cpu_target_error"] = chosen ? Json() : Json(chosen.error().message);
  info["cuda"] = cuda_json();
  const char* forced = std::getenv("KDTREE_FORCE_BACKEND");
  info["force_backend"] = forced != nullptr ? Json(forced) : Json();
  info["backends"] = Json::array();
  for (const Backend& backend : backends()) {
    info["backends"].push_back(
        {{"name", backend.name}, {"available", backend.available}, {"reason", backend.reason}});
  }
  return info;
}

void print_text(const Json& info) {
  const bool colours = colours_wanted();
  print_out("kdtree {} (ABI {}), {}\n", info["version"].get<std::string>(),
            info["abi_version"].get<uint32_t>(), info["compiler"].get<std::string>());
  print_out("CPU       {}\n", info["cpu"].get<std::string>());
  std::string present;
  std::string missing;
  for (const auto& [name, here] : info["cpu_features"].items())
    (here.get<bool>() ? present : missing) += " " + name;
  print_out("features {}{}{}\n", present, missing.empty() ? "" : "; not", missing);
  print_out("trees     {} (compiled: {})\n",
            info["simd_chosen"].is_null() ? "none" : info["simd_chosen"].get<std::string>(),
            fmt::join(info["simd_compiled"].get<std::vector<std::string>>(), ", "));
  std::vector<std::string> targets;
  for (const Json& target : info["cpu_targets"])
    targets.push_back(target["name"].get<std::string>());
  print_out("attention {} (compiled: {})\n",
            info["cpu_target"].is_null() ? info["cpu_target_error"].get<std::string>()
                                         : info["cpu_target"].get<std::string>(),
            fmt::join(targets, ", "));
  const Json& cuda = info["cuda"];
  if (!cuda["reason"].is_null()) print_out("CUDA      {}\n", cuda["reason"].get<std::string>());
  for (const Json& device : cuda["devices"]) {
    print_out("CUDA      {}, sm_{}, {} SMs, {} bytes of shared memory a block, {:.1f} GiB\n",
              device["name"].get<std::string>(), device["compute_capability"].get<int>(),
              device["multiprocessors"].get<int>(), device["shared_memory_bytes"].get<int>(),
              static_cast<double>(device["memory_bytes"].get<int64_t>()) / (1 << 30));
    print_out("          runs {}: {}\n",
              device["backend"].is_null() ? "none" : device["backend"].get<std::string>(),
              device["backend_reason"].get<std::string>());
  }
  if (!info["force_backend"].is_null()) {
    print_out("KDTREE_FORCE_BACKEND={}\n", info["force_backend"].get<std::string>());
  }
  print_out("backends, slowest first\n");
  for (const Json& backend : info["backends"]) {
    const bool available = backend["available"].get<bool>();
    print_out(
        "  {:<17} {}  {}\n", backend["name"].get<std::string>(),
        paint(available ? "available  " : "unavailable", available ? Colour::green : Colour::dim, colours),
        backend["reason"].get<std::string>());
  }
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "Version, CPU, SIMD targets and backends");
  command->add_flag("--json", *json, "Print one JSON object");
  command->footer(kExamples);
  command->callback([&action, json] {
    action = [json]() -> Result<int> {
      const Json info = collect();
      if (*json) {
        print_out("{}\n", info.dump(2));
      } else {
        print_text(info);
      }
      return kExitOk;
    };
  });
}

}  // namespace kdtree::cli
