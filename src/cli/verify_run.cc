#include "cli/verify_run.h"

#include <cstdlib>

#include <fmt/ranges.h>

#include "attention/cuda_backends.h"
#include "cli/suggest.h"

namespace kdtree::cli {
namespace {

Result<Backend> available_backend(const std::string& name, const char* asked_by) {
  std::vector<std::string> names;
  for (const Backend& backend : backends()) {
    names.emplace_back(backend.name);
    if (name != backend.name) continue;
    if (backend.available) return backend;
    return fail(KDTREE_BACKEND_UNAVAILABLE, "{}: {} is not available: {}", asked_by, name, backend.reason);
  }
  return fail(KDTREE_INVALID_ARGUMENT, "{}: '{}', expected one of {}{}", asked_by, name,
              fmt::join(names, ", "), suggestion(name, names));
}

// KDTREE_FORCE_BACKEND; null where it is not set.
const char* forced_backend() {
  const char* forced = std::getenv("KDTREE_FORCE_BACKEND");
  return forced != nullptr && *forced != '\0' ? forced : nullptr;
}

}  // namespace

Status VerifyRun::execute(ProgressLine& progress) {
  if (device) {
    KDTREE_RETURN_IF_ERROR(
        run_verify(device->params(), device_workspace.data(), device_workspace.size(), nullptr));
    return wait_for_device();
  }
  return run_verify(params, workspace.data(), workspace.size(), nullptr,
                    [&](int64_t done, int64_t total) { return progress.update(done, total); });
}

Status VerifyRun::fetch() {
  return device ? device->read_outputs(out, lse) : Status{};
}

Result<VerifyRun> prepare_run(OwnedProblem& problem, int32_t backend, bool exact) {
  VerifyRun run;
  run.params = problem.params();
  VerifyProblem& p = run.params;
  const DType out_dtype = exact ? DType::f64 : static_cast<DType>(p.out_dtype);
  const DType lse_type = exact ? DType::f64 : DType::f32;
  p.backend = backend;
  p.out_dtype = static_cast<int32_t>(out_dtype);
  p.lse_dtype = static_cast<int32_t>(lse_type);
  p.out_token_stride = p.out_head_stride = p.lse_token_stride = p.lse_head_stride = 0;
  const int64_t rows = total_rows(p);
  const auto heads = checked_mul(rows, p.heads);
  const auto bytes = heads ? checked_mul(*heads, p.latent_dim * dtype_size(out_dtype)) : heads;
  KDTREE_RETURN_IF_ERROR(check_memory(bytes, "out"));
  run.out = Tensor(out_dtype, {rows, p.heads, p.latent_dim});
  run.lse = Tensor(lse_type, {rows, p.heads});
  // pointer() is not null for a batch without rows, which is a result like any other.
  p.out = const_cast<void*>(run.out.pointer());
  p.lse = const_cast<void*>(run.lse.pointer());
  if (backend >= KDTREE_BACKEND_CUDA_NAIVE) {
    auto device = DeviceProblem::create(problem, p, run.out, run.lse);
    KDTREE_RETURN_IF_ERROR(device);
    run.device = *std::move(device);
    const auto size = verify_workspace_size(run.device->params());
    KDTREE_RETURN_IF_ERROR(size);
    auto workspace = DeviceMemory::create(*size);
    KDTREE_RETURN_IF_ERROR(workspace);
    run.device_workspace = *std::move(workspace);
    return run;
  }
  const auto size = verify_workspace_size(p);
  KDTREE_RETURN_IF_ERROR(size);
  auto workspace = Workspace::allocate(*size);
  KDTREE_RETURN_IF_ERROR(workspace);
  run.workspace = *std::move(workspace);
  return run;
}

Result<VerifyRun> run_backend(OwnedProblem& problem, int32_t backend, bool exact, const std::string& label) {
  auto run = prepare_run(problem, backend, exact);
  KDTREE_RETURN_IF_ERROR(run);
  ProgressLine progress(label);
  KDTREE_RETURN_IF_ERROR(run->execute(progress));
  KDTREE_RETURN_IF_ERROR(run->fetch());
  return run;
}

std::string automatic_backend(const VerifyProblem& on_device) {
  VerifyProblem p = on_device;
  p.backend = KDTREE_BACKEND_AUTO;
  const auto id = choose_backend(p);
  if (!id) return id.error().message;
  std::string text;
  std::string refusal;
  for (const Backend& backend : backends()) {
    if (backend.id == *id) text = backend.name;
    if (backend.id <= *id || !backend.available) continue;
    if (const Status status = cuda_supports(p, backend.id); !status) refusal = status.error().message;
  }
  return refusal.empty() ? text : fmt::format("{} ({})", text, refusal);
}

bool names_backends(const std::vector<std::string>& names) {
  return !names.empty() || forced_backend() != nullptr;
}

Result<std::vector<Backend>> select_backends(const std::vector<std::string>& names) {
  std::vector<Backend> chosen;
  for (const std::string& name : names) {
    const auto backend = available_backend(name, "--backend");
    KDTREE_RETURN_IF_ERROR(backend);
    chosen.push_back(*backend);
  }
  if (!names.empty()) return chosen;
  if (const char* forced = forced_backend()) {
    const auto backend = available_backend(forced, "KDTREE_FORCE_BACKEND");
    KDTREE_RETURN_IF_ERROR(backend);
    return std::vector<Backend>{*backend};
  }
  for (const Backend& backend : backends()) {
    if (backend.available && backend.id != KDTREE_BACKEND_ORACLE) chosen.push_back(backend);
  }
  if (chosen.empty()) {
    return fail(KDTREE_BACKEND_UNAVAILABLE, "no backend but the oracle is available here, see `kdtree info`");
  }
  return chosen;
}

}  // namespace kdtree::cli
