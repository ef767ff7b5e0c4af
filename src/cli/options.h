// Checks of option values. Their messages state the value and what was expected; CLI11 puts the option's
// name in front.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace kdtree::cli {

// A decimal integer in [least, most].
CLI::Validator integer_in(int64_t least, int64_t most);
// Such integers between commas, and their values (after the check).
CLI::Validator integers_in(int64_t least, int64_t most);
std::vector<int64_t> parse_integers(const std::string& text);
// As integer_in, and a multiple of `factor`.
CLI::Validator multiple_in(int64_t least, int64_t most, int64_t factor);
// A finite decimal number in [least, most].
CLI::Validator number_in(double least, double most);
// An unsigned 64-bit integer.
CLI::Validator seed_value();
// One of `words`; the nearest is suggested.
CLI::Validator one_of(const std::vector<std::string>& words);
// Some of them between commas, each once.
CLI::Validator some_of(const std::vector<std::string>& words);
// At commas; empty parts stay.
std::vector<std::string> split(const std::string& text);

}  // namespace kdtree::cli
