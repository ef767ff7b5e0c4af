// Errors as values: a status code of kdtree.h and a message that names the field, the value seen and
// what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <fmt/core.h>
#include <tl/expected.hpp>

#include "kdtree/kdtree.h"

namespace kdtree {

struct Error {
  int32_t code = KDTREE_INTERNAL_ERROR;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
tl::unexpected<Error> fail(int32_t code, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// Puts `context` ("request 3: ") before the message of a failed status.
inline tl::unexpected<Error> with_context(Error error, const std::string& context) {
  error.message.insert(0, context);
  return tl::unexpected<Error>(std::move(error));
}

// "KDTREE_INVALID_TREE" for KDTREE_INVALID_TREE; "KDTREE_UNKNOWN_STATUS" for anything else.
const char* status_name(int32_t code);

}  // namespace kdtree

// Returns from the enclosing function with the error of a failed Status or Result.
#define KDTREE_RETURN_IF_ERROR(expression)                                \
  do {                                                                    \
    if (auto&& status_ = (expression); !status_) {                        \
      return tl::unexpected<::kdtree::Error>(std::move(status_).error()); \
    }                                                                     \
  } while (false)
