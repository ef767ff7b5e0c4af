#include "attention/backend.h"

#include <array>
#include <cstdlib>

#include "attention/cpu/tile.h"
#include "attention/cpu/verify_attn_cpu.h"
#include "attention/oracle.h"
#include "attention/validate.h"

namespace kdtree {
namespace {

constexpr const char* kNoCuda = "required: CUDA kernels, which this version does not have";

const Backend* find_backend(int32_t id) {
  for (const Backend& backend : backends()) {
    if (backend.id == id) return &backend;
  }
  return nullptr;
}

std::string backend_names() {
  std::string names;
  for (const Backend& backend : backends())
    names += (names.empty() ? "" : ", ") + std::string(backend.name);
  return names;
}

Result<const Backend*> available_backend(int32_t id, const std::string& asked_by) {
  const Backend* backend = find_backend(id);
  if (backend == nullptr) {
    return fail(KDTREE_INVALID_ARGUMENT, "backend is {}, expected a KDTREE_BACKEND_* number ({})", id,
                backend_names());
  }
  if (!backend->available) {
    return fail(KDTREE_BACKEND_UNAVAILABLE, "{} is {}, which is not available: {}", asked_by, backend->name,
                backend->reason);
  }
  return backend;
}

Backend cpu_backend() {
  for (const CpuTarget& target : cpu_targets()) {
    if (target.supported) {
      return {KDTREE_BACKEND_CPU, "cpu", true, fmt::format("{}, all host threads", target.name)};
    }
  }
  return {KDTREE_BACKEND_CPU, "cpu", false, "required: one of the instruction sets " + cpu_target_names()};
}

// The checks every call starts with.
Result<int32_t> prepare(const VerifyProblem& problem) {
  KDTREE_RETURN_IF_ERROR(validate_fields(problem));
  const auto id = choose_backend(problem);
  if (!id) return id;
  if (*id == KDTREE_BACKEND_CPU) KDTREE_RETURN_IF_ERROR(cpu_supports(problem));
  KDTREE_RETURN_IF_ERROR(validate_contents(problem));
  return id;
}

}  // namespace

std::span<const Backend> backends() {
  static const Backend cpu = cpu_backend();
  static const std::array<Backend, 6> table = {{
      {KDTREE_BACKEND_ORACLE, "oracle", true, "fp64, one host thread"},
      cpu,
      {KDTREE_BACKEND_CUDA_NAIVE, "cuda-naive", false, kNoCuda},
      {KDTREE_BACKEND_CUDA_FLASH, "cuda-flash", false, kNoCuda},
      {KDTREE_BACKEND_CUDA_FLASH_PAGED, "cuda-flash-paged", false, kNoCuda},
      {KDTREE_BACKEND_CUDA_SM90, "cuda-sm90", false, kNoCuda},
  }};
  return table;
}

Result<int32_t> backend_from_name(const std::string& name) {
  for (const Backend& backend : backends()) {
    if (backend.name == name) return backend.id;
  }
  return fail(KDTREE_INVALID_ARGUMENT, "backend is \"{}\", expected one of: {}", name, backend_names());
}

Result<int32_t> choose_backend(const VerifyProblem& problem) {
  int32_t id = problem.backend;
  std::string asked_by = "backend";
  if (id == KDTREE_BACKEND_AUTO) {
    // Read at every call, so that a test or a debugger can change it.
    const char* forced = std::getenv("KDTREE_FORCE_BACKEND");
    if (forced == nullptr || *forced == '\0') {
      return find_backend(KDTREE_BACKEND_CPU)->available ? KDTREE_BACKEND_CPU : KDTREE_BACKEND_ORACLE;
    }
    asked_by = "KDTREE_FORCE_BACKEND";
    const auto named = backend_from_name(forced);
    if (!named) return with_context(named.error(), "KDTREE_FORCE_BACKEND: ");
    id = *named;
  }
  const auto backend = available_backend(id, asked_by);
  if (!backend) return tl::unexpected<Error>(backend.error());
  return (*backend)->id;
}

Result<size_t> verify_workspace_size(const VerifyProblem& problem) {
  const auto id = prepare(problem);
  if (!id) return tl::unexpected<Error>(id.error());
  Scratch scratch;
  if (*id == KDTREE_BACKEND_ORACLE) {
    oracle_scratch(problem, scratch);
  } else {
    cpu_scratch(problem, scratch);
  }
  return scratch.measured();
}

Status run_verify(const VerifyProblem& problem, void* workspace, size_t bytes, void* /*stream*/,
                  const Progress& progress) {
  const auto id = prepare(problem);
  if (!id) return tl::unexpected<Error>(id.error());
  Scratch scratch(workspace, bytes);
  return *id == KDTREE_BACKEND_ORACLE ? run_oracle(problem, scratch, progress)
                                      : run_cpu(problem, scratch, progress);
}

}  // namespace kdtree
