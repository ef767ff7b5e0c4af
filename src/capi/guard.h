// What every C entry point goes through: parameter blocks in, statuses out, no exception across.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "core/status.h"

namespace kdtree::capi {

void set_last_error(const char* message) noexcept;

// Runs `body` (returning Status) and turns its outcome into a status code and this thread's message.
template <class Body>
int32_t guard(Body&& body) noexcept {
  try {
    const Status status = body();
    if (status) return KDTREE_OK;
    set_last_error(status.error().message.c_str());
    return status.error().code;
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return KDTREE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return KDTREE_INTERNAL_ERROR;
  } catch (...) {
    set_last_error("unknown exception");
    return KDTREE_INTERNAL_ERROR;
  }
}

inline Status expect_pointer(const char* field, const void* pointer) {
  if (pointer != nullptr) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is null, expected an array", field);
}

inline Status expect_at_least(const char* field, int64_t value, int64_t least) {
  if (value >= least) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected >= {}", field, value, least);
}

// The answer of a size query.
inline Status answer_size(const Result<size_t>& size, size_t* bytes) {
  KDTREE_RETURN_IF_ERROR(expect_pointer("bytes", bytes));
  KDTREE_RETURN_IF_ERROR(size);
  *bytes = *size;
  return {};
}

// struct_size of a caller's block: not below the header's, and above ours only as far as a newer kdtree.h
// could go. Every block is a whole number of 8-byte words, so another size would end inside a field.
template <class Params>
Status check_struct_size(const Params* user) {
  constexpr uint32_t kSmallest = 16;  // struct_size, flags, next
  constexpr uint32_t kLargest = 4096;
  if (user == nullptr) return fail(KDTREE_INVALID_ARGUMENT, "params is null, expected a parameter block");
  if (user->struct_size < kSmallest || user->struct_size > kLargest || user->struct_size % 8 != 0) {
    return fail(KDTREE_INVALID_STRUCT, "struct_size is {}, expected {} (use KDTREE_INIT)", user->struct_size,
                sizeof(Params));
  }
  return {};
}

// A caller's block as this library knows it: fields that an older caller lacks are zero; a newer caller's
// extra fields must be zero.
template <class Params>
Result<Params> read_params(const Params* user) {
  KDTREE_RETURN_IF_ERROR(check_struct_size(user));
  Params params{};
  std::memcpy(&params, user, std::min<size_t>(user->struct_size, sizeof(Params)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(user);
  for (size_t i = sizeof(Params); i < user->struct_size; ++i) {
    if (bytes[i] != 0) {
      return fail(KDTREE_UNSUPPORTED,
                  "struct_size is {} and byte {} is set, expected at most {} bytes in version {}.{}",
                  user->struct_size, i, sizeof(Params), KDTREE_VERSION_MAJOR, KDTREE_VERSION_MINOR);
    }
  }
  if (params.flags != 0) return fail(KDTREE_INVALID_STRUCT, "flags is {}, expected 0", params.flags);
  if (params.next != nullptr) return fail(KDTREE_INVALID_STRUCT, "next is set, expected NULL");
  params.struct_size = sizeof(Params);
  return params;
}

// guard() around `body(params)`.
template <class Params, class Body>
int32_t call(const Params* user, Body&& body) noexcept {
  return guard([&]() -> Status {
    const auto params = read_params(user);
    if (!params) return tl::unexpected<Error>(params.error());
    return body(*params);
  });
}

}  // namespace kdtree::capi
