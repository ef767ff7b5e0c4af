#include "cli/tree_json.h"

#include "core/checked.h"
#include "tree/ancestor_bits.h"
#include "tree/retrieve.h"

namespace kdtree::cli {
namespace {

// A row of bits as one hexadecimal number: node 0 is the lowest bit.
std::string hex_row(std::span<const uint64_t> words) {
  std::string text = "0x";
  for (size_t word = words.size(); word-- > 0;)
    text += fmt::format("{:016x}", words[word]);
  return text;
}

}  // namespace

nlohmann::ordered_json tree_json(const TreeReport& report) {
  const DraftTree& tree = report.tree;
  const auto nodes = static_cast<size_t>(tree.size());
  const auto words = static_cast<size_t>(ceil_div(tree.size(), 64));
  std::vector<uint64_t> bits(nodes * words);
  ancestor_bits_from_parents(tree.parent, bits, static_cast<int64_t>(words));
  std::vector<int64_t> next_token(nodes);
  std::vector<int64_t> next_sibling(nodes);
  retrieve_from_parents(tree.parent, next_token, next_sibling);

  std::vector<std::string> bit_rows;
  std::vector<int64_t> positions;
  std::vector<int64_t> index;
  std::vector<double> probabilities;
  std::vector<double> path_probabilities;
  for (size_t i = 0; i < nodes; ++i) {
    const auto node = static_cast<int64_t>(i);
    bit_rows.push_back(hex_row(std::span(bits).subspan(i * words, words)));
    positions.push_back(report.start + tree.depth[i]);
    index.push_back(node);
    probabilities.push_back(report.probability(node));
    path_probabilities.push_back(report.path_probability(node));
  }

  nlohmann::ordered_json json;
  json["source"] = report.source;
  json["draft_positions"] = report.positions;
  json["vocab"] = report.vocab;
  json["top_k"] = report.top_k;
  json["node_budget"] = report.budget;
  json["nodes"] = tree.size();
  json["depth"] = report.depth();
  json["expected_accept_length"] = report.expected_accept_length();
  json["tokens"] = tree.token;
  json["parents"] = tree.parent;
  json["depths"] = tree.depth;
  json["log_weights"] = tree.log_weight;
  json["probabilities"] = probabilities;
  json["path_probabilities"] = path_probabilities;
  json["positions"] = positions;
  json["ancestor_bits"] = bit_rows;
  json["retrieve_index"] = index;
  json["retrieve_next_token"] = next_token;
  json["retrieve_next_sibling"] = next_sibling;
  if (!report.path.empty()) {
    json["target_tokens"] = report.target_tokens;
    json["accept_path"] = report.path;
    json["accept_count"] = report.path.size();
    json["emitted_tokens"] = report.emitted;
    json["next_root"] = report.emitted.back();
  }
  return json;
}

}  // namespace kdtree::cli
