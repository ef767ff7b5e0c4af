// What generate, capture and tune share: which models, how they decode, on which prompts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <tbb/global_control.h>

#include "engine/engine.h"
#include "model/dflash.h"
#include "model/tokenizer.h"

namespace kdtree::cli {

struct ModelOptions {
  std::string model;
  std::string draft;
  std::string products = "f32";  // or bf16, or auto
  int64_t threads = 0;           // 0 = all
};

struct DecodeOptions {
  std::string mode;            // ar, chain or tree; of generate several between commas; "" = the default
  std::string nodes = "auto";  // or a number, or one for each prompt
  int64_t batch = 4;
  int64_t max_new = 256;
  int64_t kv_slots = 0;   // 0 = as many as the prompts need
  std::string kv_dtype;   // "" = that of the products
  bool move_rows = true;  // of EngineOptions
  SamplingParams sampling;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;
  std::vector<std::string> input_ids;
};

void add_model_options(CLI::App& command, ModelOptions& options);
// Of commands whose results need not be those of other machines.
void add_products_option(CLI::App& command, ModelOptions& options);
// `several`: --mode takes a list.
void add_decode_options(CLI::App& command, DecodeOptions& options, bool several = false);

// The models, loaded, and the limit on threads while the object lives.
class ModelSession {
 public:
  static Result<std::unique_ptr<ModelSession>> load(const ModelOptions& options);

  TargetModel& target() { return target_; }
  DFlashDrafter* drafter() { return drafter_.get(); }  // null without one
  const DFlashDrafter* drafter() const { return drafter_.get(); }
  const TargetModel& target() const { return target_; }
  // The model's tokenizer: an error where it has none, or one of another kind than byte-level. Only text
  // needs it.
  const Result<Tokenizer>& tokenizer() const { return tokenizer_; }
  int64_t threads() const { return threads_; }
  const ModelOptions& options() const { return options_; }
  // What rounds cost here: kept from `kdtree tune`, or measured when first asked for.
  Result<CostTable> costs(bool verbose);

 private:
  ModelSession(const ModelOptions& options, TargetModel target, Result<Tokenizer> tokenizer)
      : options_(options), target_(std::move(target)), tokenizer_(std::move(tokenizer)) {}

  ModelOptions options_;
  TargetModel target_;
  std::unique_ptr<DFlashDrafter> drafter_;
  Result<Tokenizer> tokenizer_;
  std::unique_ptr<tbb::global_control> limit_;
  int64_t threads_ = 1;
  std::optional<CostTable> costs_;
};

// The prompts of the options, or of standard input when they give none. Errors: KDTREE_INVALID_ARGUMENT
// naming the option, KDTREE_IO_ERROR.
Result<std::vector<Request>> read_requests(const DecodeOptions& options, const ModelSession& session);

// The --kv-dtype of options that name one, or the type that the model's products are of.
DType kv_dtype_or_default(const DecodeOptions& options, const ModelSession& session);

// The --mode of options that name one, or the default: tree with a drafter, else ar.
std::string mode_or_default(const DecodeOptions& options, const ModelSession& session);

// An engine for the requests. `verbose` says where the costs of --nodes auto come from.
Result<Engine> make_engine(const DecodeOptions& options, ModelSession& session,
                           const std::vector<Request>& requests, bool verbose);
// What the options say to an engine; with --nodes auto its nodes are the most that may be chosen.
Result<EngineOptions> engine_options(const DecodeOptions& options, const ModelSession& session);

// The file that keeps the costs of this machine with these models, and what it says about them.
struct TuneFile {
  std::string path;
  std::string key;
};
TuneFile tune_file(const ModelSession& session);

// Nodes that costs are measured for, and that --nodes auto may choose.
inline constexpr int32_t kMostAutoNodes = 256;

}  // namespace kdtree::cli
