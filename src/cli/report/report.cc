#include "cli/report/report.h"

#include <algorithm>

namespace kdtree::cli {
namespace {

double per_second(int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

// The first nodes of the tree, which are its most probable ones, and the path.
void keep_part(const DraftTree& tree, std::span<const int32_t> path, ReportRound& round) {
  std::vector<int32_t> number(tree.parent.size(), -1);
  for (size_t node = 0; node < number.size(); ++node) {
    const bool accepted = std::binary_search(path.begin(), path.end(), static_cast<int32_t>(node));
    if (static_cast<int64_t>(node) > RoundRecorder::kMostTreeNodes && !accepted) continue;
    number[node] = static_cast<int32_t>(round.tree.parent.size());
    round.tree.token.push_back(tree.token[node]);
    round.tree.parent.push_back(node == 0 ? -1 : number[static_cast<size_t>(tree.parent[node])]);
    round.tree.depth.push_back(tree.depth[node]);
    round.tree.log_weight.push_back(tree.log_weight[node]);
  }
  for (const int32_t node : path)
    round.path.push_back(number[static_cast<size_t>(node)]);
}

}  // namespace

double ReportRun::tokens_per_second() const {
  return per_second(stats.emitted, times.rounds());
}

double speedup(const ReportRun& run, const ReportRun& baseline) {
  const double base = baseline.tokens_per_second();
  return base > 0.0 ? run.tokens_per_second() / base : 0.0;
}

const ReportRun& baseline_run(const std::vector<ReportRun>& runs) {
  const auto plain = std::find_if(runs.begin(), runs.end(), [](const auto& run) { return run.mode == "ar"; });
  return plain != runs.end() ? *plain : runs.front();
}

const ReportRun& shown_run(const std::vector<ReportRun>& runs) {
  for (const char* mode : {"tree", "chain"}) {
    const auto run =
        std::find_if(runs.rbegin(), runs.rend(), [&](const auto& each) { return each.mode == mode; });
    if (run != runs.rend()) return *run;
  }
  return runs.back();
}

void RoundRecorder::add(const RoundView& round, double seconds) {
  ReportRound kept;
  kept.request = round.request;
  kept.seconds = seconds;
  kept.nodes = round.tree.size() - 1;
  kept.emitted.assign(round.emitted.begin(), round.emitted.end());
  if (kept_ < kMostKeptNodes) keep_part(round.tree, round.accept_path, kept);
  kept_ += kept.tree.size();
  rounds_.push_back(std::move(kept));
}

std::string difference(const std::vector<ReportText>& texts, const std::string& mode,
                       const std::vector<ReportText>& others, const std::string& other_mode) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const ReportText& text = texts[i];
    const ReportText& other = others[i];
    const auto at =
        std::mismatch(text.tokens.begin(), text.tokens.end(), other.tokens.begin(), other.tokens.end());
    if (at.first != text.tokens.end() && at.second != other.tokens.end()) {
      return fmt::format("prompt {}: token {} is {} with {}, {} with {}", i + 1,
                         at.first - text.tokens.begin() + 1, *at.first, mode, *at.second, other_mode);
    }
    if (text.finish_reason != other.finish_reason) {
      return fmt::format("prompt {}: ends with '{}' with {}, with '{}' with {}", i + 1, text.finish_reason,
                         mode, other.finish_reason, other_mode);
    }
    const bool stopped = text.finish_reason == "stop";
    if (stopped ? text.bytes != other.bytes : text.tokens.size() != other.tokens.size()) {
      return fmt::format("prompt {}: {} tokens with {}, {} with {}", i + 1, text.tokens.size(), mode,
                         other.tokens.size(), other_mode);
    }
  }
  return "";
}

}  // namespace kdtree::cli
