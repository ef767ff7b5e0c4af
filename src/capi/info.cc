// Version, errors and capabilities.
#include <cstdio>
#include <string>

#include "attention/backend.h"
#include "capi/guard.h"

namespace kdtree::capi {
namespace {

thread_local std::string last_error;

}  // namespace

void set_last_error(const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // no memory for the message: the status code still tells
  }
}

}  // namespace kdtree::capi

using namespace kdtree;

extern "C" {

uint32_t kdtree_abi_version(void) noexcept {
  return KDTREE_ABI_VERSION;
}

const char* kdtree_version(void) noexcept {
#define KDTREE_TEXT_OF(x) #x
#define KDTREE_TEXT(x) KDTREE_TEXT_OF(x)
  return KDTREE_TEXT(KDTREE_VERSION_MAJOR) "." KDTREE_TEXT(KDTREE_VERSION_MINOR) "." KDTREE_TEXT(
      KDTREE_VERSION_PATCH);
#undef KDTREE_TEXT
#undef KDTREE_TEXT_OF
}

const char* kdtree_status_name(int32_t status) noexcept {
  return status_name(status);
}

size_t kdtree_last_error(char* buffer, size_t capacity) noexcept {
  const std::string& message = capi::last_error;
  if (buffer != nullptr && capacity > 0) {
    const size_t length = std::min(message.size(), capacity - 1);
    std::memcpy(buffer, message.data(), length);
    buffer[length] = '\0';
  }
  return message.size();
}

int32_t kdtree_backend_count(void) noexcept {
  return static_cast<int32_t>(backends().size());
}

int32_t kdtree_get_backend_info(int32_t index, kdtree_backend_info* info) noexcept {
  return capi::guard([&]() -> Status {
    KDTREE_RETURN_IF_ERROR(capi::check_struct_size(info));
    if (info->flags != 0 || info->next != nullptr) {
      return fail(KDTREE_INVALID_STRUCT, "flags is {} and next {}, expected 0 and NULL", info->flags,
                  info->next == nullptr ? "NULL" : "set");
    }
    if (index < 0 || index >= kdtree_backend_count()) {
      return fail(KDTREE_INVALID_ARGUMENT, "index is {}, expected 0 .. {}", index,
                  kdtree_backend_count() - 1);
    }
    const Backend& backend = backends()[static_cast<size_t>(index)];
    kdtree_backend_info filled{};
    filled.struct_size = info->struct_size;
    filled.backend = backend.id;
    filled.available = backend.available ? 1 : 0;
    std::snprintf(filled.name, sizeof(filled.name), "%s", backend.name);
    std::snprintf(filled.reason, sizeof(filled.reason), "%s", backend.reason.c_str());
    std::memcpy(info, &filled, std::min<size_t>(info->struct_size, sizeof(filled)));
    return {};
  });
}

}  // extern "C"
