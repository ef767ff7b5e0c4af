// Whether a text is well-formed XML, as far as this project's writer goes: one root, balanced tags, quoted
// attributes that differ, known entities.
#pragma once

#include <regex>
#include <set>
#include <string>
#include <vector>

namespace kdtree::cli_test {

// "" or what is wrong.
inline std::string xml_problem(const std::string& text) {
  static const std::regex kTag(R"re(^<(/?)([a-zA-Z][\w:-]*)((?:\s+[\w:-]+="[^"<]*")*)\s*(/?)>)re");
  static const std::regex kAttribute(R"re(([\w:-]+)=")re");
  static const std::regex kEntity(R"re(^&(?:amp|lt|gt|quot|apos|#\d+);)re");
  std::vector<std::string> open;
  bool had_root = false;
  for (size_t at = 0; at < text.size();) {
    const std::string rest = text.substr(at, 4096);
    std::smatch match;
    if (text[at] == '&') {
      if (!std::regex_search(rest, match, kEntity)) return "stray & at " + std::to_string(at);
      at += static_cast<size_t>(match.length());
    } else if (text[at] == '<') {
      if (!std::regex_search(rest, match, kTag)) return "malformed tag at " + std::to_string(at);
      at += static_cast<size_t>(match.length());
      std::set<std::string> names;
      const std::string attributes = match[3];
      for (std::sregex_iterator i(attributes.begin(), attributes.end(), kAttribute), end; i != end; ++i) {
        if (!names.insert((*i)[1]).second) return "attribute twice: " + (*i)[1].str();
      }
      if (match[1].length() > 0) {
        if (open.empty() || open.back() != match[2]) return "unbalanced </" + match[2].str() + ">";
        open.pop_back();
      } else if (match[4].length() == 0) {
        if (open.empty() && had_root) return "second root " + match[2].str();
        had_root = true;
        open.push_back(match[2]);
      }
    } else {
      if (open.empty() && text[at] != '\n') return "text outside the root";
      ++at;
    }
  }
  if (!had_root) return "no root";
  return open.empty() ? "" : "unclosed <" + open.back() + ">";
}

}  // namespace kdtree::cli_test
