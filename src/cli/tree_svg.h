// A draft tree as a self-contained SVG picture.
#pragma once

#include <string>

#include "cli/tree_report.h"

namespace kdtree::cli {

// Depth runs to the right, one column a position. An edge is as wide as its path is probable; the accepted
// path is drawn over the rest. The picture has its own background, so it reads on light and dark pages.
std::string tree_svg(const TreeReport& report);

}  // namespace kdtree::cli
