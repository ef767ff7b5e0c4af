// "did you mean": the nearest of the words that would have been right.
#pragma once

#include <string>
#include <vector>

namespace kdtree::cli {

// "; did you mean 'tree'?" for the word of `words` within two edits of `word`; "" when there is none.
std::string suggestion(const std::string& word, const std::vector<std::string>& words);

}  // namespace kdtree::cli
