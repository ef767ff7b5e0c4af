// A draft tree as JSON, in the arrays of the C ABI.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/tree_report.h"

namespace kdtree::cli {

nlohmann::ordered_json tree_json(const TreeReport& report);

}  // namespace kdtree::cli
