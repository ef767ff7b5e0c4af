// The page's style and script, from page.css and page.js.
#pragma once

#include <string_view>

namespace kdtree::cli {

extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

}  // namespace kdtree::cli
