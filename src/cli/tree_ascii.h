// A draft tree as text.
#pragma once

#include <string>

#include "cli/tree_report.h"

namespace kdtree::cli {

struct TextStyle {
  bool utf8 = false;     // box-drawing characters instead of | and `
  bool colours = false;  // escape sequences
};

// One line a node: token, probability given the parent, probability of the path, a mark on the accepted path.
std::string tree_ascii(const TreeReport& report, const TextStyle& style);

}  // namespace kdtree::cli
