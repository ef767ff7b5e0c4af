// Standard output and standard error: plain writes, colours and the last check that all was written.
#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

#include "core/status.h"

namespace kdtree::cli {

enum class Colour { none, bold, dim, red, green };

// Whether standard output takes escape sequences: a terminal, NO_COLOR unset or empty
// (https://no-color.org) and TERM not "dumb".
bool colours_wanted();
// Whether the locale's character set is UTF-8.
bool utf8_wanted();

// `text` between escape sequences when `wanted`.
std::string paint(std::string_view text, Colour colour, bool wanted);

void write_out(std::string_view text);

template <class... Args>
void print_out(fmt::format_string<Args...> format, Args&&... args) {
  write_out(fmt::format(format, std::forward<Args>(args)...));
}

// "kdtree: error: <message>", on one line.
void print_error(std::string_view message);

// Flushes. A pipe whose reader has gone is no error. Errors: KDTREE_IO_ERROR.
Status finish_output();

}  // namespace kdtree::cli
