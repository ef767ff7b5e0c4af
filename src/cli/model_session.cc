#include "cli/model_session.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>

#include <unistd.h>

#include "cli/cpu_info.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "core/parallel.h"
#include "io/mapped_file.h"
#include "kdtree/kdtree.h"

namespace kdtree::cli {
namespace {

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostNodes = 65536;
constexpr int64_t kMostTokens = int64_t{1} << 40;

Result<std::string> read_text(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return with_context(file.error(), "--prompt-file: ");
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

std::string absolute(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

std::string cache_folder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  const std::string cache = variable("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/kdtree";
  const std::string home = variable("HOME");
  return (home.empty() ? "." : home) + "/.cache/kdtree";
}

// The products that the option asks for. Errors: KDTREE_INVALID_ARGUMENT naming it.
Result<Products> products_of(const ModelOptions& options) {
  if (options.products == "auto") return fastest_products();
  if (options.products == "f32") return Products::f32;
  if (best_ops_target().multiplies_bf16) return Products::bf16;
  return fail(KDTREE_INVALID_ARGUMENT,
              "--products: 'bf16', expected auto or f32: bf16 needs AVX-512-BF16, which {} does not have",
              cpu_name());
}

}  // namespace

void add_model_options(CLI::App& command, ModelOptions& o) {
  command
      .add_option("--model", o.model,
                  "Folder of the target: config.json and safetensors, DeepseekV3ForCausalLM")
      ->required();
  command.add_option("--draft", o.draft, "Folder of the drafter, DFlashDraftModel");
  command.add_option("--threads", o.threads, "Threads (default: all)")->check(integer_in(1, kMostThreads));
}

void add_products_option(CLI::App& command, ModelOptions& o) {
  o.products = "auto";
  command
      .add_option(
          "--products", o.products,
          "What bf16 weights are multiplied in: f32, or bf16 with rows rounded to it; auto: bf16 where "
          "the processor is fast at it")
      ->check(one_of({"auto", "f32", "bf16"}))
      ->capture_default_str();
}

void add_decode_options(CLI::App& command, DecodeOptions& o, bool several) {
  const std::vector<std::string> modes = {"ar", "chain", "tree"};
  command
      .add_option(
          "--mode", o.mode,
          fmt::format("Plain decoding, draft chains or draft trees{} (default: tree with --draft, else ar)",
                      several ? ", or several, to compare them" : ""))
      ->check(several ? some_of(modes) : one_of(modes));
  command
      .add_option("--nodes", o.nodes,
                  "Nodes a round, the root not counted; one value, or one for each prompt between commas; or "
                  "auto: what gives most tokens a second")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            return text == "auto" || integers_in(0, kMostNodes)(text).empty()
                       ? ""
                       : fmt::format("'{}', expected auto or an integer in 0 .. {}", text, kMostNodes);
          },
          fmt::format("auto or in 0 .. {}", kMostNodes), ""))
      ->capture_default_str();
  command.add_option("--max-new", o.max_new, "Tokens to generate for each prompt, at most")
      ->check(integer_in(1, kMostTokens))
      ->capture_default_str();
  command.add_option("--prompt", o.prompts, "A prompt; repeatable (default: standard input)")
      ->allow_extra_args(false);
  command.add_option("--prompt-file", o.prompt_files, "A file that is a prompt; repeatable")
      ->allow_extra_args(false);
  command.add_option("--input-ids", o.input_ids, "A prompt as token ids between commas; repeatable")
      ->allow_extra_args(false)
      ->check(integers_in(0, std::numeric_limits<int32_t>::max()));
  command.add_option("--batch", o.batch, "Prompts that are decoded together")
      ->check(integer_in(1, 4096))
      ->capture_default_str();
  command.add_option("--temperature", o.sampling.temperature, "0 = the likeliest token always")
      ->check(number_in(0.0, 1000.0))
      ->capture_default_str();
  command
      .add_option("--top-p", o.sampling.top_p, "Likeliest tokens that have this much probability together")
      ->check(number_in(1e-9, 1.0))
      ->capture_default_str();
  command.add_option("--top-k", o.sampling.top_k, "So many likeliest tokens; 0 = all")
      ->check(integer_in(0, std::numeric_limits<int32_t>::max()))
      ->capture_default_str();
  command.add_option("--min-p", o.sampling.min_p, "Tokens with this part of the likeliest one's probability")
      ->check(number_in(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", o.sampling.seed, "Of the draws: the same text in every mode")
      ->check(seed_value())
      ->capture_default_str();
  command
      .add_option("--kv-dtype", o.kv_dtype,
                  "Element type of the KV cache (default: bf16 with bf16 products, else f32)")
      ->check(one_of({"f32", "bf16"}));
  command
      .add_option("--kv-slots", o.kv_slots, "Tokens that the KV cache holds (default: what the prompts need)")
      ->check(integer_in(1, kMostTokens));
}

Result<std::unique_ptr<ModelSession>> ModelSession::load(const ModelOptions& options) {
  const auto products = products_of(options);
  KDTREE_RETURN_IF_ERROR(products);
  auto target = TargetModel::load(options.model, *products);
  if (!target) return with_context(target.error(), "--model: ");
  if (options.products == "bf16" && target->products() != Products::bf16) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "--products: 'bf16', expected auto or f32: the weights of {} are not in bf16", options.model);
  }
  std::unique_ptr<ModelSession> session(
      new ModelSession(options, *std::move(target), Tokenizer::load(options.model + "/tokenizer.json")));
  if (!options.draft.empty()) {
    auto drafter = DFlashDrafter::load(options.draft, session->target_, *products);
    if (!drafter) return with_context(drafter.error(), "--draft: ");
    session->drafter_ = *std::move(drafter);
  }
  if (options.threads > 0) {
    session->limit_ = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                            static_cast<size_t>(options.threads));
  }
  session->threads_ = thread_limit();
  return session;
}

Result<CostTable> ModelSession::costs(bool verbose) {
  if (costs_) return *costs_;
  const TuneFile file = tune_file(*this);
  auto table = CostTable::load(file.path, file.key);
  if (table) {
    if (verbose) fmt::print(stderr, "costs from {}\n", file.path);
  } else {
    if (verbose) fmt::print(stderr, "measuring costs (kdtree tune keeps them)\n");
    table = CostTable::measure(target_, drafter_.get(), kMostAutoNodes);
  }
  if (table) costs_ = *table;
  return table;
}

Result<std::vector<Request>> read_requests(const DecodeOptions& options, const ModelSession& session) {
  std::vector<std::string> texts = options.prompts;
  for (const std::string& path : options.prompt_files) {
    auto text = read_text(path);
    KDTREE_RETURN_IF_ERROR(text);
    texts.push_back(*std::move(text));
  }
  if (texts.empty() && options.input_ids.empty()) {
    if (isatty(STDIN_FILENO) != 0) {
      return fail(KDTREE_INVALID_ARGUMENT,
                  "--prompt: none, expected --prompt, --prompt-file, --input-ids or text on standard input");
    }
    texts.emplace_back(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  const Result<Tokenizer>& tokenizer = session.tokenizer();
  const int64_t vocab = session.target().config().vocab_size;
  if (!texts.empty() && !tokenizer) return with_context(tokenizer.error(), "--prompt needs a tokenizer: ");
  if (!texts.empty() && tokenizer->vocab_size() > vocab) {
    return fail(KDTREE_INVALID_FILE, "{}/tokenizer.json has tokens up to {}, expected the model's 0 .. {}",
                session.options().model, tokenizer->vocab_size() - 1, vocab - 1);
  }
  std::vector<Request> requests;
  const auto add = [&](std::vector<int32_t> tokens) {
    requests.push_back({std::move(tokens), options.max_new, options.sampling});
  };
  for (const std::string& text : texts)
    add(tokenizer->encode(text));
  for (const std::string& ids : options.input_ids) {
    const auto values = parse_integers(ids);
    add({values.begin(), values.end()});
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].prompt.empty()) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "prompt {} is empty, expected at least one token", i + 1);
  }
  if (options.nodes == "auto") return requests;
  const auto nodes = parse_integers(options.nodes);
  if (nodes.size() != 1 && nodes.size() != requests.size()) {
    return fail(KDTREE_INVALID_ARGUMENT, "--nodes: {} values, expected 1 or one for each of {} prompts",
                nodes.size(), requests.size());
  }
  for (size_t i = 0; i < requests.size(); ++i)
    requests[i].nodes = static_cast<int32_t>(nodes[nodes.size() == 1 ? 0 : i]);
  return requests;
}

DType kv_dtype_or_default(const DecodeOptions& options, const ModelSession& session) {
  if (!options.kv_dtype.empty()) return options.kv_dtype == "bf16" ? DType::bf16 : DType::f32;
  return session.target().products() == Products::bf16 ? DType::bf16 : DType::f32;
}

std::string mode_or_default(const DecodeOptions& options, const ModelSession& session) {
  if (!options.mode.empty()) return options.mode;
  return session.options().draft.empty() ? "ar" : "tree";
}

Result<EngineOptions> engine_options(const DecodeOptions& options, const ModelSession& session) {
  EngineOptions engine;
  const std::string mode = mode_or_default(options, session);
  if (mode != "ar" && session.options().draft.empty()) {
    return fail(KDTREE_INVALID_ARGUMENT, "--mode: '{}', expected --draft with it, or ar", mode);
  }
  engine.mode = mode == "ar"      ? DecodeMode::autoregressive
                : mode == "chain" ? DecodeMode::chain
                                  : DecodeMode::tree;
  engine.nodes = options.nodes == "auto"
                     ? kMostAutoNodes
                     : static_cast<int32_t>(std::ranges::max(parse_integers(options.nodes)));
  engine.move_rows = options.move_rows;
  engine.batch = options.batch;
  engine.kv_dtype = kv_dtype_or_default(options, session);
  return engine;
}

Result<Engine> make_engine(const DecodeOptions& options, ModelSession& session,
                           const std::vector<Request>& requests, bool verbose) {
  auto engine = engine_options(options, session);
  KDTREE_RETURN_IF_ERROR(engine);
  std::optional<NodePolicy> policy;
  if (options.nodes == "auto" && engine->mode != DecodeMode::autoregressive) {
    auto table = session.costs(verbose);
    KDTREE_RETURN_IF_ERROR(table);
    // The table ends where no tree can pay.
    engine->nodes = static_cast<int32_t>(std::min<int64_t>(engine->nodes, table->rows.back()));
    policy.emplace(*std::move(table));
  }
  const ModelConfig& config = session.target().config();
  engine->kv_slots = options.kv_slots;
  if (options.kv_slots == 0) {
    std::vector<int64_t> needs;
    for (const Request& request : requests)
      needs.push_back(Engine::slots_needed(config, *engine, request));
    std::sort(needs.rbegin(), needs.rend());
    needs.resize(std::min(needs.size(), static_cast<size_t>(options.batch)));
    for (const int64_t need : needs)
      engine->kv_slots = saturating_add(engine->kv_slots, need);
  }
  const int64_t row = config.kv_width() * dtype_size(engine->kv_dtype) * config.layers;
  KDTREE_RETURN_IF_ERROR(check_memory(checked_mul(engine->kv_slots, row), "--kv-slots, --max-new: KV cache"));
  const int64_t rows = engine->mode == DecodeMode::autoregressive ? 1 : int64_t{engine->nodes} + 1;
  KDTREE_RETURN_IF_ERROR(
      check_memory(checked_mul(options.batch * rows, 4 * config.vocab_size), "--nodes, --batch: logits"));
  return Engine::create(session.target(), session.drafter(), *engine, std::move(policy));
}

TuneFile tune_file(const ModelSession& session) {
  const ModelOptions& options = session.options();
  // Weights that are replaced by others of the same size cost the same.
  TuneFile file;
  file.key = fmt::format("kdtree {}, {}, {} threads, {} products, {} ({} bytes), {}", kdtree_version(),
                         cpu_name(), session.threads(), products_name(session.target().products()),
                         absolute(options.model), session.target().weight_bytes(),
                         session.drafter() == nullptr ? "no drafter"
                                                      : fmt::format("{} ({} bytes)", absolute(options.draft),
                                                                    session.drafter()->weight_bytes()));
  file.path = fmt::format("{}/tune-{:016x}.json", cache_folder(), fnv1a(std::as_bytes(std::span(file.key))));
  return file;
}

}  // namespace kdtree::cli
