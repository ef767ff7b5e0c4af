#include "engine/text_stream.h"

#include <algorithm>

namespace kdtree {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

using Form = Utf8Character::Form;

}  // namespace

Utf8Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Form::complete, 1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // What the second byte may be: no overlong forms, no surrogates, nothing above U+10FFFF.
  uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  uint32_t code_point = lead & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {Form::incomplete, i, 0};
    if (byte(i) < least || byte(i) > most) return {Form::invalid, i, 0};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
    least = 0x80;
    most = 0xbf;
  }
  return {Form::complete, size, code_point};
}

bool is_control(uint32_t c) {
  if (c == '\n' || c == '\t') return false;
  return c < 0x20 || (c >= 0x7f && c <= 0x9f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void TextStream::append(uint32_t code_point, std::string_view encoded, std::string& to) const {
  if (!escape_control_ || !is_control(code_point)) {
    to += encoded;
  } else {
    to += code_point < 0x100 ? fmt::format("\\x{:02x}", code_point) : fmt::format("\\u{:04x}", code_point);
  }
}

std::string TextStream::push(std::string_view bytes) {
  held_ += bytes;
  std::string_view rest = held_;
  std::string shown;
  while (!rest.empty()) {
    const Utf8Character character = first_character(rest);
    if (character.form == Form::incomplete) break;
    if (character.form == Form::complete) {
      append(character.code_point, rest.substr(0, character.size), shown);
    } else {
      shown += kReplacement;
    }
    rest.remove_prefix(character.size);
  }
  held_ = std::string(rest);
  return shown;
}

std::string TextStream::finish() {
  const bool cut = !held_.empty();
  held_.clear();
  return std::string(cut ? kReplacement : "");
}

StopMatcher::Pattern::Pattern(const std::string& stop) : text(stop), fallback(stop.size(), 0) {
  for (size_t i = 1, length = 0; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length])
      length = fallback[length - 1];
    if (text[i] == text[length]) ++length;
    fallback[i] = length;
  }
}

void StopMatcher::Pattern::advance(char byte) {
  while (matched > 0 && byte != text[matched])
    matched = fallback[matched - 1];
  if (byte == text[matched]) ++matched;
}

Result<StopMatcher> StopMatcher::create(const std::vector<std::string>& stops) {
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) {
      return fail(KDTREE_INVALID_ARGUMENT, "stop[{}] is empty, expected at least one byte", i);
    }
    matcher.patterns_.emplace_back(stops[i]);
  }
  return matcher;
}

std::string StopMatcher::push(std::string_view bytes) {
  for (const char byte : bytes) {
    if (stopped_) break;
    held_ += byte;
    size_t longest = 0;
    for (Pattern& pattern : patterns_) {
      pattern.advance(byte);
      if (pattern.complete()) longest = std::max(longest, pattern.text.size());
    }
    if (longest == 0) continue;
    stopped_ = true;
    held_.resize(held_.size() - longest);
  }
  size_t undecided = 0;
  if (!stopped_) {
    for (const Pattern& pattern : patterns_)
      undecided = std::max(undecided, pattern.matched);
  }
  const size_t safe = held_.size() - undecided;
  std::string out = held_.substr(0, safe);
  held_.erase(0, safe);
  return out;
}

std::string StopMatcher::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

}  // namespace kdtree
