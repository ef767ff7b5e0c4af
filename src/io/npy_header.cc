#include "io/npy_header.h"

#include <charconv>
#include <optional>

namespace kdtree {
namespace {

class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  Result<NpyHeader> parse() {
    NpyHeader header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    if (!take('{')) return expected("'{'");
    while (!take('}')) {
      const auto key = quoted();
      if (!key) return expected("a quoted key or '}'");
      if (!take(':')) return expected("':'");
      if (*key == "descr" && !has_descr) {
        const auto value = quoted();
        if (!value) return expected("a quoted element type (structured types are not read)");
        header.descr = *value;
        has_descr = true;
      } else if (*key == "fortran_order" && !has_order) {
        header.fortran_order = take("True");
        if (!header.fortran_order && !take("False")) return expected("True or False");
        has_order = true;
      } else if (*key == "shape" && !has_shape) {
        KDTREE_RETURN_IF_ERROR(tuple(header.shape));
        has_shape = true;
      } else {
        return fail(KDTREE_INVALID_FILE,
                    "the header has a key '{}', expected descr, fortran_order and shape, once each", *key);
      }
      if (!take(',')) {
        if (!take('}')) return expected("',' or '}'");
        break;
      }
    }
    skip_space();
    if (position_ != text_.size()) return expected("nothing after '}'");
    if (!has_descr || !has_order || !has_shape) {
      return fail(KDTREE_INVALID_FILE, "the header lacks {}, expected descr, fortran_order and shape",
                  !has_descr   ? "descr"
                  : !has_order ? "fortran_order"
                               : "shape");
    }
    return header;
  }

 private:
  void skip_space() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n'))
      ++position_;
  }

  bool take(std::string_view token) {
    skip_space();
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }
  bool take(char token) { return take(std::string_view(&token, 1)); }

  // Without escapes: no name that is expected here has any.
  std::optional<std::string_view> quoted() {
    for (const char quote : {'\'', '"'}) {
      if (!take(quote)) continue;
      const size_t end = text_.find(quote, position_);
      if (end == std::string_view::npos) return std::nullopt;
      const auto value = text_.substr(position_, end - position_);
      position_ = end + 1;
      return value;
    }
    return std::nullopt;
  }

  // (), (3,), (3, 4) or (3, 4,)
  Status tuple(std::vector<int64_t>& values) {
    if (!take('(')) return expected("'('");
    bool comma = false;
    while (!take(')')) {
      if (!values.empty() && !comma) return expected("',' or ')'");
      skip_space();
      const char* begin = text_.data() + position_;
      int64_t value = 0;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0) return expected("a dimension of 0 .. 2^63 - 1");
      position_ += static_cast<size_t>(end - begin);
      values.push_back(value);
      comma = take(',');
    }
    // (3) is a number in Python, not a tuple.
    if (values.size() == 1 && !comma) return expected("a ',' in a tuple of one");
    return {};
  }

  tl::unexpected<Error> expected(const char* what) {
    skip_space();
    const auto rest = text_.substr(position_, 16);
    return fail(KDTREE_INVALID_FILE, "the header has \"{}\" at byte {}, expected {}", rest, position_, what);
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text) {
  return LiteralParser(text).parse();
}

}  // namespace kdtree
