#include "cli/suggest.h"

#include <algorithm>

#include <fmt/format.h>

namespace kdtree::cli {
namespace {

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j)
    row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string suggestion(const std::string& word, const std::vector<std::string>& words) {
  const std::string* nearest = nullptr;
  int best = 3;
  for (const std::string& candidate : words) {
    const int distance = edit_distance(word, candidate);
    if (distance < best && distance < static_cast<int>(candidate.size())) {
      nearest = &candidate;
      best = distance;
    }
  }
  return nearest != nullptr ? fmt::format("; did you mean '{}'?", *nearest) : "";
}

}  // namespace kdtree::cli
