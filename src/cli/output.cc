#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "engine/text_stream.h"

namespace kdtree::cli {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The first failed write's reason: later calls overwrite errno.
int g_write_errno = 0;

}  // namespace

bool colours_wanted() {
  return isatty(STDOUT_FILENO) != 0 && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

bool utf8_wanted() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = environment(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

std::string paint(std::string_view text, Colour colour, bool wanted) {
  if (!wanted || colour == Colour::none) return std::string(text);
  const char* code = "";
  switch (colour) {
    case Colour::none:
      break;
    case Colour::bold:
      code = "1";
      break;
    case Colour::dim:
      code = "2";
      break;
    case Colour::red:
      code = "31";
      break;
    case Colour::green:
      code = "32";
      break;
  }
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

void write_out(std::string_view text) {
  if (g_write_errno != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) g_write_errno = errno;
}

void print_error(std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  // Names out of files stand in messages: they must not drive the terminal.
  TextStream stream(true);
  line = stream.push(line) + stream.finish();
  std::fprintf(stderr, "kdtree: error: %s\n", line.c_str());
}

Status finish_output() {
  if (std::fflush(stdout) != 0 && g_write_errno == 0) g_write_errno = errno;
  if (g_write_errno == 0 || g_write_errno == EPIPE) return {};
  return fail(KDTREE_IO_ERROR, "standard output: {}", std::strerror(g_write_errno));
}

}  // namespace kdtree::cli
