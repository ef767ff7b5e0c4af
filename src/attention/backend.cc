#include "attention/backend.h"

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>

#include "attention/cpu/tile.h"
#include "attention/cpu/verify_attn_cpu.h"
#include "attention/cuda_backends.h"
#include "attention/oracle.h"
#include "attention/validate.h"

namespace kdtree {
namespace {

constexpr const char* kNotYet = "required: a kernel that this version does not have";

bool is_host_backend(int32_t id) {
  return id == KDTREE_BACKEND_ORACLE || id == KDTREE_BACKEND_CPU;
}

std::string backend_names() {
  std::string names;
  for (const Backend& backend : backends())
    names += (names.empty() ? "" : ", ") + std::string(backend.name);
  return names;
}

Backend cpu_backend() {
  for (const CpuTarget& target : cpu_targets()) {
    if (target.supported) {
      return {KDTREE_BACKEND_CPU, "cpu", true, fmt::format("{}, all host threads", target.name)};
    }
  }
  return {KDTREE_BACKEND_CPU, "cpu", false, "required: one of the instruction sets " + cpu_target_names()};
}

std::span<const Backend> host_backends() {
  static const std::array<Backend, 2> table = {
      {{KDTREE_BACKEND_ORACLE, "oracle", true, "fp64, one host thread"}, cpu_backend()}};
  return table;
}

// Looks for devices only where a host backend is not what is asked for.
const Backend* find_backend(int32_t id) {
  for (const Backend& backend : is_host_backend(id) ? host_backends() : backends()) {
    if (backend.id == id) return &backend;
  }
  return nullptr;
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

// The checks every call starts with.
Result<int32_t> prepare(const VerifyProblem& problem) {
  KDTREE_RETURN_IF_ERROR(validate_fields(problem));
  const auto id = choose_backend(problem);
  if (!id) return id;
  if (!is_host_backend(*id)) {
    KDTREE_RETURN_IF_ERROR(cuda_supports(problem, *id));
    return id;
  }
  if (*id == KDTREE_BACKEND_CPU) KDTREE_RETURN_IF_ERROR(cpu_supports(problem));
  KDTREE_RETURN_IF_ERROR(validate_contents(problem));
  return id;
}

}  // namespace

std::span<const Backend> backends() {
  // A table for each device that was current.
  static std::mutex mutex;
  static std::map<int, std::array<Backend, 6>> tables;
  const std::lock_guard lock(mutex);
  const int device = current_cuda_device();
  auto found = tables.find(device);
  if (found == tables.end()) {
    found = tables
                .emplace(device, std::array<Backend, 6>{{
                                     host_backends()[0],
                                     host_backends()[1],
                                     cuda_backend(KDTREE_BACKEND_CUDA_NAIVE, "cuda-naive"),
                                     cuda_backend(KDTREE_BACKEND_CUDA_FLASH, "cuda-flash"),
                                     cuda_backend(KDTREE_BACKEND_CUDA_FLASH_PAGED, "cuda-flash-paged"),
                                     {KDTREE_BACKEND_CUDA_SM90, "cuda-sm90", false, kNotYet},
                                 }})
                .first;
  }
  return found->second;
}

Result<int32_t> backend_from_name(const std::string& name) {
  for (const Backend& backend : backends()) {
    if (backend.name == name) return backend.id;
  }
  return fail(KDTREE_INVALID_ARGUMENT, "backend is \"{}\", expected one of: {}", name, backend_names());
}

namespace {

// Where nobody names one.
int32_t fastest_backend(const VerifyProblem& problem) {
  if (problem.memory == KDTREE_MEMORY_HOST) {
    return find_backend(KDTREE_BACKEND_CPU)->available ? KDTREE_BACKEND_CPU : KDTREE_BACKEND_ORACLE;
  }
  // If none is there, the reason of the first one says why.
  int32_t id = KDTREE_BACKEND_CUDA_NAIVE;
  for (const Backend& backend : backends())
    if (!is_host_backend(backend.id) && backend.available && cuda_supports(problem, backend.id))
      id = backend.id;
  return id;
}

}  // namespace

Result<int32_t> choose_backend(const VerifyProblem& problem) {
  int32_t id = problem.backend;
  std::string asked_by = "backend";
  if (id == KDTREE_BACKEND_AUTO) {
    // Read at every call, so that a test or a debugger can change it.
    const char* forced = std::getenv("KDTREE_FORCE_BACKEND");
    if (forced == nullptr || *forced == '\0') {
      id = fastest_backend(problem);
    } else {
      asked_by = "KDTREE_FORCE_BACKEND";
      const auto named = backend_from_name(forced);
      if (!named) return with_context(named.error(), "KDTREE_FORCE_BACKEND: ");
      id = *named;
    }
  }
  const auto backend = available_backend(id, asked_by);
  if (!backend) return tl::unexpected<Error>(backend.error());
  if (is_host_backend(id) != (problem.memory == KDTREE_MEMORY_HOST)) {
    return fail(KDTREE_INVALID_ARGUMENT, "memory is {}, expected {} with backend {}", problem.memory,
                is_host_backend(id) ? "KDTREE_MEMORY_HOST" : "KDTREE_MEMORY_CUDA", (*backend)->name);
  }
  return (*backend)->id;
}

Result<size_t> verify_workspace_size(const VerifyProblem& problem) {
  const auto id = prepare(problem);
  if (!id) return tl::unexpected<Error>(id.error());
  Scratch scratch;
  switch (*id) {
    case KDTREE_BACKEND_ORACLE:
      oracle_scratch(problem, scratch);
      break;
    case KDTREE_BACKEND_CPU:
      cpu_scratch(problem, scratch);
      break;
    default:
      KDTREE_RETURN_IF_ERROR(cuda_scratch(problem, *id, scratch));
  }
  return scratch.measured();
}

Status run_verify(const VerifyProblem& problem, void* workspace, size_t bytes, void* stream,
                  const Progress& progress) {
  const auto id = prepare(problem);
  if (!id) return tl::unexpected<Error>(id.error());
  Scratch scratch(workspace, bytes);
  switch (*id) {
    case KDTREE_BACKEND_ORACLE:
      return run_oracle(problem, scratch, progress);
    case KDTREE_BACKEND_CPU:
      return run_cpu(problem, scratch, progress);
    default:
      return run_cuda(problem, *id, scratch, stream);
  }
}

}  // namespace kdtree
