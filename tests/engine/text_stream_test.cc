#include "engine/text_stream.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

using namespace std::string_literals;

const std::string kReplaced = "\uFFFD";

// A text in one piece.
std::string shown(const std::string& bytes, bool escape_control = false) {
  TextStream stream(escape_control);
  const std::string begin = stream.push(bytes);
  return begin + stream.finish();
}

// A text in the pieces that the bits of `cuts` give: bit i cuts behind byte i.
template <class Stream>
std::string in_pieces(Stream stream, const std::string& bytes, uint64_t cuts) {
  std::string all;
  std::string piece;
  for (size_t i = 0; i < bytes.size(); ++i) {
    piece += bytes[i];
    if ((cuts >> i & 1) == 0) continue;
    all += stream.push(piece);
    piece.clear();
  }
  all += stream.push(piece);
  return all + stream.finish();
}

std::string encode(uint32_t c) {
  const auto byte = [](uint32_t x) { return static_cast<char>(x); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 + (c >> 6)), byte(0x80 + c % 64)};
  if (c < 0x10000) return {byte(0xe0 + (c >> 12)), byte(0x80 + (c >> 6) % 64), byte(0x80 + c % 64)};
  return {byte(0xf0 + (c >> 18)), byte(0x80 + (c >> 12) % 64), byte(0x80 + (c >> 6) % 64),
          byte(0x80 + c % 64)};
}

// By definition: an invalid byte and what follows, as long as it begins some character.
class Definition {
 public:
  Definition() {
    for (uint32_t c = 0x80; c < 0x110000; c += 64) {
      if (c >= 0xd800 && c < 0xe000) continue;
      const std::string all = encode(c);
      but_last_.insert(all.substr(0, all.size() - 1));
      for (size_t size = 1; size < all.size(); ++size)
        beginnings_.insert(all.substr(0, size));
    }
  }

  std::string operator()(const std::string& bytes) const {
    std::string text;
    for (size_t i = 0; i < bytes.size();) {
      size_t size = 1;
      while (size < 4 && i + size < bytes.size() && beginnings_.contains(bytes.substr(i, size)))
        ++size;
      const std::string first = bytes.substr(i, size);
      if (is_character(first)) {
        text += first;
      } else {
        text += kReplaced;
        if (!beginnings_.contains(first)) size = std::max<size_t>(1, size - 1);
      }
      i += size;
    }
    return text;
  }

 private:
  bool is_character(const std::string& bytes) const {
    if (bytes.size() == 1) return static_cast<uint8_t>(bytes[0]) < 0x80;
    const auto last = static_cast<uint8_t>(bytes.back());
    return last >= 0x80 && last < 0xc0 && but_last_.contains(bytes.substr(0, bytes.size() - 1));
  }

  std::set<std::string> but_last_;    // characters of two bytes and more, without their last one
  std::set<std::string> beginnings_;  // all that a character may begin with, but for whole ones
};

TEST(TextStream, EveryCharacterPasses) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    ASSERT_EQ(shown(encode(c)), encode(c)) << c;
  }
}

TEST(TextStream, ReplacesMaximalSubparts) {
  // Tables 3-8 to 3-11 of Unicode 15.
  EXPECT_EQ(shown("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(shown("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(shown("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(shown("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(TextStream, HoldsBackAnIncompleteCharacterOnly) {
  TextStream stream(false);
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "😀z");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("a"),
            "\uFFFD"
            "a");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push("\xAC"), "\uFFFD");  // nothing is left of what was before
  EXPECT_EQ(stream.push("\xED"), "");
  EXPECT_EQ(stream.push("\xA0"), "\uFFFD\uFFFD");
}

TEST(TextStream, EqualsTheDefinitionHoweverItIsCut) {
  const Definition by_definition;
  const std::string kBytes =
      "a\n\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xED\xEF\xF0\xF1\xF4\xF5\xFF\x1B";
  Random random(31);
  int replaced = 0;
  for (int round = 0; round < 40000; ++round) {
    std::string bytes;
    for (int64_t length = random.below(14); length > 0; --length)
      bytes += kBytes[static_cast<size_t>(random.below(static_cast<int64_t>(kBytes.size())))];
    if (random.below(2) == 0) bytes += encode(static_cast<uint32_t>(random.below(0xd800)));
    const std::string expected = by_definition(bytes);
    ASSERT_EQ(shown(bytes), expected);
    const auto cuts = static_cast<uint64_t>(random.below(int64_t{1} << 20));
    ASSERT_EQ(in_pieces(TextStream(false), bytes, cuts), expected);
    ASSERT_EQ(in_pieces(TextStream(true), bytes, cuts), shown(bytes, true));
    replaced += expected.find(kReplaced) != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(replaced, 20000);
}

TEST(TextStream, ControlsAreVisibleOnATerminal) {
  EXPECT_EQ(shown("a\x1b[31m\r\b\0b\x7f"s, true), R"(a\x1b[31m\x0d\x08\x00b\x7f)");
  EXPECT_EQ(shown("tab\tline\n", true), "tab\tline\n");
  EXPECT_EQ(shown("\u0080\u009b\u009f\u00a0", true), "\\x80\\x9b\\x9f\u00a0");
  EXPECT_EQ(shown("\x9b", true), kReplaced);  // C1 in one byte is not UTF-8
  EXPECT_EQ(shown(encode(0x202a) + encode(0x202e) + encode(0x2066) + encode(0x2069), true),
            "\\u202a\\u202e\\u2066\\u2069");
  for (uint32_t c = 0; c < 0x3000; ++c) {
    const bool control = (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c < 0xa0) ||
                         (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
    if (c >= 0xd800 && c < 0xe000) continue;
    ASSERT_EQ(shown(encode(c), true) != encode(c), control) << c;
  }
  EXPECT_EQ(shown("\x1b[31m\u009b\r"), "\x1b[31m\u009b\r");  // a file gets what was generated
}

StopMatcher matcher(const std::vector<std::string>& stops) {
  auto made = StopMatcher::create(stops);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

// By definition: the first byte that completes a stop string, and the longest that it completes.
std::pair<std::string, bool> cut(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// Bytes at the end of `text` that a stop string may begin with.
size_t undecided(const std::string& text, const std::vector<std::string>& stops) {
  size_t most = 0;
  for (const std::string& stop : stops) {
    for (size_t size = 1; size < stop.size(); ++size) {
      if (text.ends_with(stop.substr(0, size))) most = std::max(most, size);
    }
  }
  return most;
}

TEST(StopMatcher, Examples) {
  StopMatcher stop = matcher({"aab"});
  EXPECT_EQ(stop.push("at once: aab, all"), "at once: ");
  EXPECT_TRUE(stop.stopped());

  stop = matcher({"aab"});
  EXPECT_EQ(stop.push("xaaa"), "xa");
  EXPECT_FALSE(stop.stopped());
  EXPECT_EQ(stop.push("bcd"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
  EXPECT_TRUE(stop.stopped());

  stop = matcher({"\nUser:", "###"});
  EXPECT_EQ(stop.push("Yes.\nUs"), "Yes.");
  EXPECT_EQ(stop.push("e it #"), "\nUse it ");
  EXPECT_EQ(stop.push("#"), "");
  EXPECT_EQ(stop.finish(), "##");
  EXPECT_FALSE(stop.stopped());

  stop = matcher({});
  EXPECT_EQ(stop.push("all"), "all");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopMatcher, TheFirstToBeCompleteThenTheLongest) {
  StopMatcher stop = matcher({"abcd", "bc"});
  EXPECT_EQ(stop.push("xabcd"), "xa");
  EXPECT_TRUE(stop.stopped());
  stop = matcher({"c", "bc", "abc"});
  EXPECT_EQ(stop.push("xabcd"), "x");
  EXPECT_TRUE(stop.stopped());
}

TEST(StopMatcher, EqualsTheDefinitionHoweverItIsCut) {
  Random random(32);
  const auto word = [&](int64_t least, int64_t most) {
    std::string text;
    for (int64_t length = least + random.below(most - least + 1); length > 0; --length)
      text += "ab\xc3"[random.below(random.below(8) == 0 ? 3 : 2)];
    return text;
  };
  int stopped = 0, released = 0;
  for (int round = 0; round < 40000; ++round) {
    std::vector<std::string> stops;
    for (int64_t count = random.below(4); count > 0; --count)
      stops.push_back(word(1, random.below(2) == 0 ? 4 : 10));
    const std::string text = word(0, 60);
    const auto [expected, stops_there] = cut(text, stops);
    StopMatcher stop = matcher(stops);
    const auto cuts = static_cast<uint64_t>(random.below(int64_t{1} << 60));
    ASSERT_EQ(in_pieces(stop, text, cuts), expected);

    // Byte by byte: nothing too early, nothing later than need be.
    std::string all;
    for (size_t i = 0; i < text.size(); ++i) {
      all += stop.push(text.substr(i, 1));
      if (stop.stopped()) break;
      const std::string seen = text.substr(0, i + 1);
      ASSERT_EQ(all, seen.substr(0, seen.size() - undecided(seen, stops)));
    }
    ASSERT_EQ(stop.stopped(), stops_there);
    const std::string rest = stop.finish();
    ASSERT_EQ(all + rest, expected);
    stopped += stops_there ? 1 : 0;
    released += rest.empty() ? 0 : 1;
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_GT(released, 2000);
}

TEST(StopMatcher, EveryCutOfAShortText) {
  const std::vector<std::string> stops = {"aab", "abab"};
  const std::string text = "abaabaababab";
  for (uint64_t cuts = 0; cuts < uint64_t{1} << text.size(); ++cuts)
    ASSERT_EQ(in_pieces(matcher(stops), text, cuts), "ab");
}

TEST(StopMatcher, RefusesAnEmptyOne) {
  const auto made = StopMatcher::create({"a", ""});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(made.error().message, "stop[1] is empty, expected at least one byte");
}

}  // namespace
}  // namespace kdtree
