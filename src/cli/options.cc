#include "cli/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>

#include <fmt/ranges.h>

#include "cli/suggest.h"

namespace kdtree::cli {
namespace {

template <class T>
std::optional<T> parse_integer(const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

CLI::Validator validator(std::function<std::string(std::string&)> check, std::string description) {
  return CLI::Validator(std::move(check), std::move(description), "");
}

}  // namespace

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t comma = text.find(','); comma != std::string::npos; comma = text.find(',', begin)) {
    parts.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

CLI::Validator integer_in(int64_t least, int64_t most) {
  return multiple_in(least, most, 1);
}

CLI::Validator multiple_in(int64_t least, int64_t most, int64_t factor) {
  const std::string kind = factor == 1 ? "an integer" : fmt::format("a multiple of {}", factor);
  return validator(
      [=](std::string& text) -> std::string {
        const auto value = parse_integer<int64_t>(text);
        if (value && *value >= least && *value <= most && *value % factor == 0) return "";
        return fmt::format("'{}', expected {} in {} .. {}", text, kind, least, most);
      },
      fmt::format("in {} .. {}", least, most));
}

CLI::Validator integers_in(int64_t least, int64_t most) {
  const CLI::Validator each = integer_in(least, most);
  return validator(
      [=](std::string& text) -> std::string {
        for (std::string& part : split(text)) {
          if (std::string error = each(part); !error.empty()) return error;
        }
        return "";
      },
      fmt::format("each in {} .. {}", least, most));
}

std::vector<int64_t> parse_integers(const std::string& text) {
  std::vector<int64_t> values;
  for (const std::string& part : split(text))
    values.push_back(parse_integer<int64_t>(part).value_or(0));
  return values;
}

CLI::Validator number_in(double least, double most) {
  return validator(
      [=](std::string& text) -> std::string {
        // libc++ has no from_chars for floating point yet.
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool whole = !text.empty() && end == text.c_str() + text.size();
        if (whole && std::isfinite(value) && value >= least && value <= most) return "";
        return fmt::format("'{}', expected a number in {} .. {}", text, least, most);
      },
      fmt::format("in {} .. {}", least, most));
}

CLI::Validator seed_value() {
  return validator(
      [](std::string& text) -> std::string {
        if (parse_integer<uint64_t>(text)) return "";
        return fmt::format("'{}', expected an integer in 0 .. 2^64 - 1", text);
      },
      "");
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  const std::string list = fmt::format("{}", fmt::join(words, "|"));
  return validator(
      [=](std::string& text) -> std::string {
        if (std::find(words.begin(), words.end(), text) != words.end()) return "";
        return fmt::format("'{}', expected {}{}", text, list, suggestion(text, words));
      },
      list);
}

CLI::Validator some_of(const std::vector<std::string>& words) {
  const CLI::Validator each = one_of(words);
  return validator(
      [=](std::string& text) -> std::string {
        std::vector<std::string> parts = split(text);
        for (size_t i = 0; i < parts.size(); ++i) {
          if (std::string error = each(parts[i]); !error.empty()) return error;
          const auto end = parts.begin() + static_cast<std::ptrdiff_t>(i);
          if (std::find(parts.begin(), end, parts[i]) != end) {
            return fmt::format("'{}', expected each once", text);
          }
        }
        return "";
      },
      fmt::format("{}, or several between commas", fmt::join(words, "|")));
}

}  // namespace kdtree::cli
