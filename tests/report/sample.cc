// A page as generate --report writes it, without a model: the text is known, the drafter counts which byte
// follows which in this project's documents, times are made up. For tools/check_report and for those who
// change the page.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cases/random.h"
#include "cli/report/report.h"
#include "io/atomic_file.h"
#include "tests/model/byte_tokenizer.h"
#include "tree/accept.h"
#include "tree/best_first.h"

namespace kdtree::cli {
namespace {

constexpr const char* kPrompt = "def fibonacci(n: int) -> list[int]:\n";
constexpr const char* kText =
    "    \"\"\"The first `n` Fibonacci numbers, 0 and 1 among them.\n"
    "\n"
    "    A sum of two neighbours is the next: naïve, but O(n) additions → fast enough.\n"
    "    \"\"\"\n"
    "    numbers = [0, 1]\n"
    "    while len(numbers) < n:\n"
    "        numbers.append(numbers[-1] + numbers[-2])\n"
    "    return numbers[:n]\n"
    "\n"
    "\n"
    "if __name__ == \"__main__\":\n"
    "    for n in range(1, 11):\n"
    "        print(f\"{n:3d} & {fibonacci(n)}\")\t# <b>not a tag</b>\n"
    "    assert fibonacci(7)[-1] == 8, \"the seventh number is eight\"\n"
    "    # ☃ \x1b[0m \xff end\n";
constexpr int32_t kDepth = 12;
constexpr int32_t kVocab = 257;
constexpr size_t kOrder = 3;  // bytes that the drafter looks back

// How often each byte came after the last 0 to kOrder bytes.
class Counts {
 public:
  void learn(const std::string& text, double weight) {
    for (size_t i = 0; i < text.size(); ++i) {
      for (size_t order = 0; order <= std::min(kOrder, i); ++order)
        counts_[text.substr(i - order, order)][static_cast<uint8_t>(text[i])] += weight;
    }
  }

  // Every order's distribution mixed with the longer one's.
  std::array<double, kVocab> next(const std::string& before) const {
    std::array<double, kVocab> p;
    p.fill(1.0 / kVocab);
    for (size_t order = 0; order <= std::min(kOrder, before.size()); ++order) {
      const auto found = counts_.find(before.substr(before.size() - order));
      if (found == counts_.end()) break;
      double sum = 0.0;
      for (const auto& [byte, count] : found->second)
        sum += count;
      const double trust = sum / (sum + 2.0);
      for (double& each : p)
        each *= 1.0 - trust;
      for (const auto& [byte, count] : found->second)
        p[byte] += trust * count / sum;
    }
    return p;
  }

 private:
  std::map<std::string, std::map<uint8_t, double>> counts_;
};

Counts learn_documents(const std::filesystem::path& source) {
  Counts counts;
  for (const char* name : {"README.md", "CONTRIBUTING.md", "docs/model.md", "docs/cli.md",
                           "tools/bench_report", "tests/model/reference.py", "examples/python_ctypes.py"}) {
    std::ifstream file(source / name);
    std::ostringstream text;
    text << file.rdbuf();
    counts.learn(text.str(), 1.0);
  }
  counts.learn(kText, 0.7);
  return counts;
}

// Candidates of the positions behind `length` known bytes: the farther, the less the drafter knows.
void propose(const Counts& counts, const std::string& truth, size_t length, int32_t depth, int32_t k,
             std::vector<int32_t>& tokens, std::vector<float>& log_probs) {
  Random random(length);
  for (int32_t d = 0; d < depth; ++d) {
    const std::string before = truth.substr(0, std::min(length + static_cast<size_t>(d), truth.size()));
    const auto sharp = counts.next(before);
    const auto dull = counts.next(before.substr(before.size() - 1));
    const double doubt = std::min(0.8, 0.05 * d + 0.2 * random.uniform());
    std::vector<std::pair<double, int32_t>> order;
    for (int32_t token = 0; token < kVocab; ++token) {
      const auto i = static_cast<size_t>(token);
      order.emplace_back(-((1.0 - doubt) * sharp[i] + doubt * dull[i]), token);
    }
    std::sort(order.begin(), order.end());
    for (int32_t i = 0; i < k; ++i) {
      tokens.push_back(order[static_cast<size_t>(i)].second);
      log_probs.push_back(static_cast<float>(std::log(-order[static_cast<size_t>(i)].first)));
    }
  }
}

Result<ReportRun> decode(const std::string& mode, int32_t nodes, const Counts& counts) {
  const std::string truth = std::string(kPrompt) + kText;
  const auto byte_at = [&](size_t i) { return static_cast<int32_t>(static_cast<uint8_t>(truth[i])); };
  ReportRun run;
  run.mode = mode;
  run.times.prefill = 0.012;
  RoundRecorder recorder;
  Random random(7);
  size_t length = std::string_view(kPrompt).size() + 1;  // the prompt's pass gave the first token
  while (length < truth.size()) {
    const auto room = static_cast<int32_t>(truth.size() - length);
    const int32_t depth = mode == "ar" ? 0 : std::min(kDepth, room - 1);
    const int32_t k = mode == "chain" ? 1 : nodes;
    std::vector<int32_t> tokens;
    std::vector<float> log_probs;
    propose(counts, truth, length, depth, k, tokens, log_probs);
    DraftTree tree{{byte_at(length - 1)}, {-1}, {0}, {0.0}};
    if (depth > 0) {
      auto built = build_best_first({tokens.data(), log_probs.data(), depth, k}, byte_at(length - 1), nodes);
      KDTREE_RETURN_IF_ERROR(built);
      tree = *std::move(built);
    }
    std::vector<int32_t> path(tree.parent.size()), emitted(tree.parent.size());
    const TargetToken target = [&](int32_t node) -> Result<int32_t> {
      return byte_at(length + static_cast<size_t>(tree.depth[static_cast<size_t>(node)]));
    };
    const auto accepted = accept_path(tree.parent, tree.token, target, {{}, room}, path, emitted);
    KDTREE_RETURN_IF_ERROR(accepted);
    path.resize(static_cast<size_t>(accepted->count));
    emitted.resize(path.size());
    const auto rows = static_cast<double>(tree.size());
    if (depth > 0) {
      run.times.draft += 0.0011 * (0.9 + 0.2 * random.uniform());
      run.times.build += 2e-6 * rows;
    }
    run.times.compile += 4e-7 * rows;
    run.times.verify += (0.0058 + 5e-5 * rows) * (0.9 + 0.2 * random.uniform());
    run.times.accept += 5e-5;
    run.times.commit += 3e-5 * static_cast<double>(path.size());
    const int32_t deepest = *std::max_element(tree.depth.begin(), tree.depth.end());
    run.stats.add_round(tree.size(), deepest, accepted->count);
    const Request none;
    recorder.add({0, none, static_cast<int64_t>(length) - 1, tree, {}, path, emitted}, run.times.rounds());
    length += path.size();
  }
  run.wall_seconds = run.times.prefill + run.times.rounds() * 1.01;
  run.rounds = recorder.take();
  return run;
}

Status write_sample(const std::string& path, const std::string& source) {
  const auto tokenizer = Tokenizer::parse(byte_tokenizer_json().dump(), "tokenizer.json");
  KDTREE_RETURN_IF_ERROR(tokenizer);
  const Counts counts = learn_documents(source);
  GenerationReport report;
  report.model = "a sample";
  report.settings = {{"model", "none: the text is known, the drafter counts bytes, times are made up"},
                     {"nodes a round", "48"}};
  report.texts = {
      {tokenizer->encode(kPrompt), tokenizer->encode(kText), std::string_view(kText).size(), "length"}};
  report.tokenizer = &*tokenizer;
  for (const char* mode : {"ar", "chain", "tree"}) {
    auto run = decode(mode, 48, counts);
    KDTREE_RETURN_IF_ERROR(run);
    report.runs.push_back(*std::move(run));
  }
  const std::string page = report_page(report);
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(page))};
  return write_file_atomically(path, parts);
}

}  // namespace
}  // namespace kdtree::cli

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: report_sample PAGE.html\n", stderr);
    return 2;
  }
  const auto written = kdtree::cli::write_sample(argv[1], KDTREE_SOURCE_DIR);
  if (written) return 0;
  std::fprintf(stderr, "report_sample: %s\n", written.error().message.c_str());
  return 1;
}
