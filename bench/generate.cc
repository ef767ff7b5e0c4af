// bench/generate: decoding of the evaluation prompts with the model of models/tiny, one prompt at a time:
// plainly, with chains and trees of several sizes, and with as many nodes as the policy chooses. Prints one
// JSON object a way and temperature. Usage, from the project's folder: bench_generate DATE COMMIT (bench/run
// makes them)
//
// Each repeat has prompts of its own. Every way decodes each of them twice, in turn with the others, and the
// faster counts: shared machines have slow minutes. `us` is the time of a token behind the prompt,
// the median of the repeats; `ratio` that of the repeats' ratios to plain decoding, `interval` the 95 %
// confidence interval of these ratios' geometric mean. `of_best_fixed` (of auto: median, interval)
// compares with the best other way of decoding: those two alone, in turn, eight times. Costs are measured
// once; the policy is new in every repeat. All ways must emit the same tokens.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "engine/engine.h"
#include "model/dflash.h"
#include "model/tokenizer.h"

namespace kdtree {
namespace {

constexpr int64_t kRepeats = 5;
constexpr int64_t kPrompts = 10;  // of a repeat
constexpr int64_t kTries = 2;
constexpr int64_t kDuelTries = 8;
constexpr int64_t kNew = 256;
constexpr int32_t kMostAutoNodes = 256;
constexpr double kT975 = 2.776;  // Student's t of four degrees of freedom: five repeats

struct Way {
  DecodeMode mode;
  int32_t nodes;  // kAuto: the policy's
};
constexpr int32_t kAuto = -1;
constexpr Way kWays[] = {{DecodeMode::autoregressive, 0}, {DecodeMode::chain, 4}, {DecodeMode::chain, 7},
                         {DecodeMode::chain, 15},         {DecodeMode::tree, 4},  {DecodeMode::tree, 7},
                         {DecodeMode::tree, 15},          {DecodeMode::tree, 31}, {DecodeMode::tree, kAuto}};
constexpr size_t kWayCount = std::size(kWays);
constexpr size_t kAutoWay = kWayCount - 1;
constexpr const char* kModeNames[] = {"ar", "chain", "tree"};

[[noreturn]] void die(const std::string& message) {
  std::fprintf(stderr, "bench_generate: %s\n", message.c_str());
  std::exit(1);
}

template <class T>
T value_or_die(Result<T> result) {
  if (!result) die(result.error().message);
  return *std::move(result);
}

std::string name(const Way& way) {
  const std::string mode = kModeNames[static_cast<size_t>(way.mode)];
  if (way.nodes == kAuto) return mode + " auto";
  return way.mode == DecodeMode::autoregressive ? mode : fmt::format("{} {}", mode, way.nodes);
}

std::vector<std::vector<int32_t>> read_prompts(const Tokenizer& tokenizer) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/prompts")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".txt" && name[0] >= '0' && name[0] <= '9') paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    prompts.push_back(tokenizer.encode(text));
  }
  return prompts;
}

struct Models {
  TargetModel target;
  std::unique_ptr<DFlashDrafter> drafter;
  CostTable costs;
};

// What one way did in one repeat.
struct Outcome {
  double seconds = 0.0;  // behind the prompts
  GenerationStats stats;
  StageTimes times;
};

Engine make_engine(Models& models, const Way& way, int64_t kv_slots) {
  const EngineOptions options{
      .mode = way.mode,
      .nodes = way.nodes == kAuto ? static_cast<int32_t>(models.costs.rows.back()) : way.nodes,
      .batch = 1,
      .kv_slots = kv_slots,
      .kv_dtype = models.target.products() == Products::bf16 ? DType::bf16 : DType::f32};
  std::optional<NodePolicy> policy;
  if (way.nodes == kAuto) policy.emplace(models.costs);
  return value_or_die(Engine::create(models.target, models.drafter.get(), options, std::move(policy)));
}

// Seconds behind the first token.
double decode(Engine& engine, const Request& request, std::vector<int32_t>& tokens) {
  value_or_die(engine.submit(request));
  std::chrono::steady_clock::time_point begin;
  while (!engine.idle()) {
    const Status stepped = engine.step([&](const Emission& emission) {
      if (tokens.empty()) begin = std::chrono::steady_clock::now();
      tokens.insert(tokens.end(), emission.tokens.begin(), emission.tokens.end());
      return true;
    });
    if (!stepped) die(stepped.error().message);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of ways, indices of kWays, in that order.
std::vector<Outcome> run_repeat(Models& models, std::span<const std::vector<int32_t>> prompts,
                                double temperature, std::span<const size_t> ways, int64_t tries) {
  size_t longest = 0;
  for (const auto& prompt : prompts)
    longest = std::max(longest, prompt.size());
  const auto slots = static_cast<int64_t>(longest) + kNew + kMostAutoNodes;
  std::vector<Outcome> outcomes(ways.size());
  std::vector<double> best(ways.size() * prompts.size(), std::numeric_limits<double>::infinity());
  for (int64_t turn = 0; turn < tries; ++turn) {
    std::vector<Engine> engines;
    for (const size_t way : ways)
      engines.push_back(make_engine(models, kWays[way], slots));
    for (size_t p = 0; p < prompts.size(); ++p) {
      const Request request{prompts[p], kNew, {.temperature = static_cast<float>(temperature), .seed = 1}};
      std::vector<int32_t> expected;
      for (size_t i = 0; i < ways.size(); ++i) {
        const size_t w = (i + p) % ways.size();  // none is always behind the same other one
        std::vector<int32_t> tokens;
        double& fastest = best[w * prompts.size() + p];
        fastest = std::min(fastest, decode(engines[w], request, tokens));
        if (i == 0) expected = tokens;
        if (tokens != expected) die(name(kWays[ways[w]]) + " emits other tokens");
      }
    }
    for (size_t w = 0; w < ways.size(); ++w)
      outcomes[w] = {0.0, engines[w].stats(), engines[w].times()};
  }
  for (size_t i = 0; i < best.size(); ++i)
    outcomes[i / prompts.size()].seconds += best[i];
  return outcomes;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double geometric_mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values)
    sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

// Of the geometric mean.
Json confidence_interval(const std::vector<double>& ratios) {
  const double mean = std::log(geometric_mean(ratios));
  double squares = 0.0;
  for (const double ratio : ratios)
    squares += (std::log(ratio) - mean) * (std::log(ratio) - mean);
  const auto count = static_cast<double>(ratios.size());
  const double half = kT975 * std::sqrt(squares / (count - 1.0) / count);
  return {std::exp(mean - half), std::exp(mean + half)};
}

std::vector<double> quotients(const std::vector<double>& numerators,
                              const std::vector<double>& denominators) {
  std::vector<double> result;
  for (size_t i = 0; i < numerators.size(); ++i)
    result.push_back(numerators[i] / denominators[i]);
  return result;
}

// Microseconds of a token, [ways][repeats].
std::vector<std::vector<double>> token_us(const std::vector<std::vector<Outcome>>& repeats) {
  std::vector<std::vector<double>> us(repeats[0].size());
  for (const auto& outcomes : repeats) {
    for (size_t w = 0; w < us.size(); ++w)
      us[w].push_back(1e6 * outcomes[w].seconds / static_cast<double>(outcomes[w].stats.emitted));
  }
  return us;
}

size_t best_fixed_way(const std::vector<std::vector<double>>& us) {
  size_t best = 0;
  for (size_t w = 0; w < kWayCount; ++w) {
    if (kWays[w].nodes != kAuto && geometric_mean(us[w]) < geometric_mean(us[best])) best = w;
  }
  return best;
}

// `duel`: repeats of the way `best_fixed` and auto alone.
void print_cells(const std::vector<std::vector<Outcome>>& repeats, size_t best_fixed,
                 const std::vector<std::vector<Outcome>>& duel, double temperature, const Origin& origin) {
  const auto us = token_us(repeats);
  for (size_t w = 0; w < kWayCount; ++w) {
    const Way& way = kWays[w];
    double rounds = 0.0, emitted = 0.0, nodes = 0.0, draft = 0.0, verify = 0.0;
    for (const auto& outcomes : repeats) {
      rounds += static_cast<double>(outcomes[w].stats.rounds);
      emitted += static_cast<double>(outcomes[w].stats.emitted);
      nodes += static_cast<double>(outcomes[w].stats.nodes);
      draft += outcomes[w].times.draft;
      verify += outcomes[w].times.verify;
    }
    Json cell{{"bench", "generate"}, {"backend", "cpu"}, {"products", products_name(fastest_products())}};
    cell["case"] = {{"temperature", temperature}, {"mode", kModeNames[static_cast<size_t>(way.mode)]}};
    cell["case"]["nodes"] = way.nodes == kAuto ? Json("auto") : Json(way.nodes);
    cell["accept_length"] = emitted / rounds;
    cell["nodes_per_round"] = nodes / rounds;
    cell["round_us"] = {{"draft", 1e6 * draft / rounds}, {"verify", 1e6 * verify / rounds}};
    const std::vector<double> ratios = quotients(us[0], us[w]);
    cell["interval"] = confidence_interval(ratios);
    if (way.nodes == kAuto) {
      const auto duel_us = token_us(duel);
      const std::vector<double> of_best = quotients(duel_us[0], duel_us[1]);
      cell["of_best_fixed"] = {{"best", name(kWays[best_fixed])},
                               {"median", median(of_best)},
                               {"interval", confidence_interval(of_best)}};
    }
    const double typical = median(us[w]);
    print_cell(cell, {typical, *std::min_element(us[w].begin(), us[w].end())},
               {{"tokens_per_s", 1e6 / typical}}, "ar", typical * median(ratios), origin);
  }
}

int run(const Origin& origin) {
  TargetModel target = value_or_die(TargetModel::load("models/tiny/target", fastest_products()));
  auto drafter = value_or_die(DFlashDrafter::load("models/tiny/drafter", target, fastest_products()));
  const Tokenizer tokenizer = value_or_die(Tokenizer::load("models/tiny/target/tokenizer.json"));
  CostTable costs = value_or_die(CostTable::measure(target, drafter.get(), kMostAutoNodes));
  Models models{std::move(target), std::move(drafter), std::move(costs)};
  const auto prompts = read_prompts(tokenizer);
  for (const double temperature : {0.0, 0.7}) {
    const auto run_all = [&](std::span<const size_t> ways, int64_t tries) {
      std::vector<std::vector<Outcome>> repeats;
      for (int64_t r = 0; r < kRepeats; ++r) {
        const auto part = std::span(prompts).subspan(static_cast<size_t>(r * kPrompts), kPrompts);
        repeats.push_back(run_repeat(models, part, temperature, ways, tries));
      }
      return repeats;
    };
    std::vector<size_t> all(kWayCount);
    std::iota(all.begin(), all.end(), size_t{0});
    const auto repeats = run_all(all, kTries);
    const size_t best_fixed = best_fixed_way(token_us(repeats));
    const size_t pair[] = {best_fixed, kAutoWay};
    print_cells(repeats, best_fixed, run_all(pair, kDuelTries), temperature, origin);
  }
  return 0;
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "Usage: bench_generate DATE COMMIT\n");
    return 2;
  }
  return kdtree::run({argv[1], argv[2]});
}
