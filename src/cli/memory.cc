#include "cli/memory.h"

#include <cstdlib>
#include <limits>

#include <unistd.h>

#include "core/scratch.h"

namespace kdtree::cli {
namespace {

int64_t machine_memory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_size = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_size > 0 ? pages * page_size : std::numeric_limits<int64_t>::max();
}

}  // namespace

std::string format_bytes(int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(units)) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

Status check_memory(std::optional<int64_t> bytes, const std::string& what) {
  const int64_t limit = machine_memory();
  if (bytes && *bytes <= limit) return {};
  return fail(KDTREE_OUT_OF_MEMORY, "{}: these sizes need {}, expected at most {} (this machine's memory)",
              what, bytes ? format_bytes(*bytes) : "more than 2^63 bytes", format_bytes(limit));
}

void Workspace::Free::operator()(void* pointer) const {
  std::free(pointer);
}

Result<Workspace> Workspace::allocate(size_t bytes) {
  Workspace workspace;
  if (bytes == 0) return workspace;
  constexpr auto kAlignment = static_cast<size_t>(Scratch::kAlignment);
  // aligned_alloc takes whole multiples of the alignment.
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  workspace.data_.reset(rounded >= bytes ? std::aligned_alloc(kAlignment, rounded) : nullptr);
  if (workspace.data_ == nullptr) {
    return fail(KDTREE_OUT_OF_MEMORY, "workspace: cannot allocate {} bytes", bytes);
  }
  workspace.size_ = rounded;
  return workspace;
}

}  // namespace kdtree::cli
