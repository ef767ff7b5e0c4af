// Pieces of HTML that are safe whatever they are made from.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cli/report/report.h"

namespace kdtree::cli {

// For text and for quoted attributes. What is not UTF-8 becomes U+FFFD, controls are written out.
std::string escape_html(std::string_view text);
// JSON that may stand inside a <script> element.
std::string json_in_script(const nlohmann::ordered_json& json);
// "1 token", "4 tokens"
std::string plural(int64_t count, std::string_view noun);

// What stands on a tree's node: a token's text with its blanks, controls and stray bytes made visible, or its
// id where it has none. At most 20 characters.
std::string token_label(const Tokenizer* tokenizer, int32_t token);
// A request's prompt, and what it said with a <span> for each round.
std::string text_html(const ReportText& text, const std::vector<const ReportRound*>& rounds,
                      const Tokenizer* tokenizer);

}  // namespace kdtree::cli
